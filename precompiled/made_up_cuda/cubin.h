// What a cubin (an ELF file with machine code of one architecture) says of itself.
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

// Raises std::invalid_argument where `data` is no cubin.
Cubin read_cubin(const std::vector<char>& data);

}  // namespace made_up
