// Properties of a cubin (an ELF file with machine code for one architecture).
#pragma once
#include <map>
#include <string>
#include <vector>

namespace made_up {

struct Kernel {
    int registers = 0, local_bytes = 0;
};

struct Cubin {
    int architecture = 0;  // 90 for sm_90 and sm_90a
    std::map<std::string, Kernel> kernels;
};

// Throws std::invalid_argument if `data` is not a cubin.
Cubin read_cubin(const std::vector<char>& data);

}  // namespace made_up
