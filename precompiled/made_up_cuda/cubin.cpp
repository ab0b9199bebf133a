// CUDA's ELF format is not documented. tests/gpu/test_made_up_device.py compares the results with cuobjdump
// --dump-resource-usage. The architecture is the low byte of e_flags; from ABI 8 on, the second byte. The number of
// registers is the upper byte of a code section's sh_info; from ABI 8 on, an attribute.
#include "cubin.h"

#include <elf.h>

#include <cstring>
#include <stdexcept>

namespace made_up {

static const unsigned char SIZED = 0x04, FRAME_SIZE = 0x11, REGISTER_COUNT = 0x2f;  // codes in .nv.info

Cubin read_cubin(const std::vector<char>& data) {
    auto at = [&](size_t offset, size_t size) {
        if (offset > data.size() || size > data.size() - offset) throw std::invalid_argument("a cubin that ends early");
        return data.data() + offset;
    };
    auto* head = (const Elf64_Ehdr*)at(0, sizeof(Elf64_Ehdr));
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_machine != EM_CUDA) throw std::invalid_argument("no cubin");
    const bool newer = head->e_ident[EI_ABIVERSION] >= 8;
    Cubin found;
    found.architecture = newer ? head->e_flags >> 8 & 0xff : head->e_flags & 0xff;

    auto* sections = (const Elf64_Shdr*)at(head->e_shoff, head->e_shnum * sizeof(Elf64_Shdr));
    const Elf64_Shdr& names = sections[head->e_shstrndx];
    auto name_of = [&](const Elf64_Shdr& section) { return std::string(at(names.sh_offset + section.sh_name, 1)); };
    std::vector<std::string> symbols;
    for (int i = 0; i < head->e_shnum; i++) {
        const Elf64_Shdr& section = sections[i];
        const std::string name = name_of(section);
        if (name.rfind(".text.", 0) == 0) found.kernels[name.substr(6)].registers = newer ? 0 : section.sh_info >> 24;
        if (section.sh_type != SHT_SYMTAB) continue;
        const Elf64_Shdr& texts = sections[section.sh_link];
        for (size_t offset = 0; offset < section.sh_size; offset += sizeof(Elf64_Sym)) {
            auto* symbol = (const Elf64_Sym*)at(section.sh_offset + offset, sizeof(Elf64_Sym));
            symbols.push_back(at(texts.sh_offset + symbol->st_name, 1));
        }
    }
    for (int i = 0; i < head->e_shnum; i++) {
        const Elf64_Shdr& section = sections[i];
        if (name_of(section) != ".nv.info") continue;
        for (size_t offset = 0; offset + 4 <= section.sh_size;) {
            auto* record = (const unsigned char*)at(section.sh_offset + offset, 4);
            const unsigned size = record[2] | record[3] << 8;
            if (record[0] != SIZED) {
                offset += 4;
                continue;
            }
            if (size >= 8 && (record[1] == FRAME_SIZE || record[1] == REGISTER_COUNT)) {
                unsigned symbol, value;
                memcpy(&symbol, at(section.sh_offset + offset + 4, 4), 4);
                memcpy(&value, at(section.sh_offset + offset + 8, 4), 4);
                auto kernel = symbol < symbols.size() ? found.kernels.find(symbols[symbol]) : found.kernels.end();
                if (kernel != found.kernels.end())
                    (record[1] == FRAME_SIZE ? kernel->second.local_bytes : kernel->second.registers) = value;
            }
            offset += 4 + size;
        }
    }
    return found;
}

}  // namespace made_up
