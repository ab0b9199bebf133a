#include "device.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <sstream>

namespace made_up {

static const Kind KINDS[] = {
#include "kinds.inc"
};

static std::string variable(const char* name) {
    const char* value = getenv(name);
    return value ? value : "";
}

static std::vector<std::string> parts(const std::string& text, char between = ',') {
    std::vector<std::string> found;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, between);) {
        size_t first = part.find_first_not_of(" \t"), last = part.find_last_not_of(" \t");
        found.push_back(first == std::string::npos ? "" : part.substr(first, last - first + 1));
    }
    return found;
}

static std::string state_file(const std::string& name) {
    static const std::string folder = variable("CUDA_MADE_UP_STATE");
    return folder.empty() ? "" : folder + "/" + name;
}

// ---------------------------------------------------------------- which devices

// Parses the fields of a kind that need not be in the table: "NVIDIA L4|8|9|58|...". Null if `text` is not such a row.
static const Kind* row(const std::string& text) {
    const std::vector<std::string> fields = parts(text, '|');
    unsigned long long numbers[11];
    if (fields.size() != 1 + std::size(numbers)) return nullptr;
    for (size_t i = 0; i < std::size(numbers); i++) {
        char* end;
        numbers[i] = strtoull(fields[i + 1].c_str(), &end, 10);
        if (*end || fields[i + 1].empty()) return nullptr;
    }
    const auto& n = numbers;  // the Kind is never freed
    return new Kind{"", strdup(fields[0].c_str()), n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10]};
}

const std::vector<Device>& host() {
    static const std::vector<Device> all = [] {
        std::vector<Device> found;
        for (const std::string& code : parts(variable("CUDA_MADE_UP"))) {
            const Kind* kind = row(code);
            for (const Kind& one : KINDS)
                if (code == one.code) kind = &one;
            if (!kind) {
                fprintf(stderr, "CUDA_MADE_UP names no kind of GPU: %s\n", code.c_str());
                abort();  // otherwise a later "no GPU" error would hide the cause
            }
            Device device{kind, (int)found.size(), {'m', 'a', 'd', 'e', 'u', 'p'}};
            device.uuid[15] = (unsigned char)(device.index + 1);
            found.push_back(device);
        }
        return found;
    }();
    return all;
}

std::string Device::uuid_text() const {
    char text[48];
    const unsigned char* u = uuid;
    snprintf(
        text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
        u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]
    );
    return text;
}

std::string Device::bus() const {
    char text[16];
    snprintf(text, sizeof text, "0000:%02x:00.0", index + 1);
    return text;
}

bool Device::lost() const {
    const std::string file = state_file("lost-" + std::to_string(index));
    if (file.empty()) return false;
    return access(file.c_str(), F_OK) == 0 || access((file + "-" + std::to_string(getpid())).c_str(), F_OK) == 0;
}

bool Device::exclusive() const {
    const std::string file = state_file("exclusive-" + std::to_string(index));
    return !file.empty() && access(file.c_str(), F_OK) == 0;
}

const std::vector<Device>& visible() {
    static const std::vector<Device> chosen = [] {
        const char* wanted = getenv("CUDA_VISIBLE_DEVICES");
        if (!wanted) return host();
        std::vector<Device> found;
        for (const std::string& name : parts(wanted)) {
            const Device* device = nullptr;
            if (!name.empty() && name.find_first_not_of("0123456789") == std::string::npos) {
                size_t index = std::stoul(name);
                if (index < host().size()) device = &host()[index];
            } else if (name.size() > 4 && name.rfind("GPU-", 0) == 0) {
                for (const Device& one : host())
                    if (one.uuid_text().rfind(name, 0) == 0) device = &one;
            }
            if (!device) break;  // as in CUDA, devices after a wrong name are invisible, too
            found.push_back(*device);
        }
        return found;
    }();
    return chosen;
}

static thread_local int current_device = 0;
int current() { return current_device; }
bool select(int device) {
    if (device < 0 || device >= (int)visible().size()) return false;
    current_device = device;
    return true;
}

int attribute(const Device& device, int which) {
    const Kind& kind = *device.kind;
    switch (which) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return kind.major;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return kind.minor;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return kind.multiprocessors;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return kind.shared_block;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return kind.shared_multiprocessor;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 64 << 10;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 0x7fffffff;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return kind.threads;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return kind.l2;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return kind.bus_bits;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return kind.memory_mhz * 1000;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return kind.sm_mhz * 1000;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: return device.exclusive() ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS : CU_COMPUTEMODE_DEFAULT;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return device.index + 1;
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: return 1;
        default: return 0;
    }
}

// ---------------------------------------------------------------- device memory, which is the host's memory

struct Block {
    size_t size;
    int device;
};
static std::mutex lock;
static std::map<char*, Block>& blocks() {
    static auto* all = new std::map<char*, Block>;  // never destroyed: torch frees memory while the process ends
    return *all;
}

static size_t used[64];  // bytes that this process uses of each visible device

// The file use-<index>-<pid> has the bytes that a process uses of a device, so that all processes see the free memory.
static void tell_use(int device) {
    const std::string name = "use-" + std::to_string(visible()[device].index) + "-" + std::to_string(getpid());
    const std::string file = state_file(name);
    if (file.empty()) return;
    int opened = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (opened < 0) return;
    unsigned long long bytes = used[device];
    if (pwrite(opened, &bytes, sizeof bytes, 0) < 0) perror(file.c_str());
    close(opened);
}

static size_t used_by_all(int device) {
    const std::string folder = state_file("");
    DIR* listing = folder.empty() ? nullptr : opendir(folder.c_str());
    if (!listing) return used[device];
    const std::string prefix = "use-" + std::to_string(visible()[device].index) + "-";
    size_t sum = 0;
    while (dirent* entry = readdir(listing)) {
        if (strncmp(entry->d_name, prefix.c_str(), prefix.size())) continue;
        pid_t pid = atoi(entry->d_name + prefix.size());
        const std::string file = folder + entry->d_name;
        if (kill(pid, 0) && errno == ESRCH) {  // the process has ended
            unlink(file.c_str());
            continue;
        }
        unsigned long long bytes = 0;
        int opened = open(file.c_str(), O_RDONLY | O_CLOEXEC);
        if (opened >= 0 && read(opened, &bytes, sizeof bytes) == sizeof bytes) sum += bytes;
        if (opened >= 0) close(opened);
    }
    closedir(listing);
    return sum;
}

cudaError_t allocate(void** pointer, size_t size) {
    const int device = current();
    if (visible().empty()) return cudaErrorNoDevice;
    if (visible()[device].lost()) return cudaErrorDevicesUnavailable;
    size = (size + 0x1fffff) & ~size_t(0x1fffff);
    std::lock_guard<std::mutex> guard(lock);
    if (used_by_all(device) + size > visible()[device].kind->memory) return cudaErrorMemoryAllocation;
    // The host allocates a page of zeros at the first access.
    void* found = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return cudaErrorMemoryAllocation;
    blocks()[(char*)found] = {size, device};
    used[device] += size;
    tell_use(device);
    *pointer = found;
    return cudaSuccess;
}

cudaError_t release(void* pointer) {
    if (!pointer) return cudaSuccess;
    std::lock_guard<std::mutex> guard(lock);
    auto block = blocks().find((char*)pointer);
    if (block == blocks().end()) return cudaErrorInvalidValue;
    used[block->second.device] -= block->second.size;
    tell_use(block->second.device);
    munmap(pointer, block->second.size);
    blocks().erase(block);
    return cudaSuccess;
}

// Zeroing returns pages to the system, which provides zeros at the next access. Otherwise zeroing would take half of a
// program's time: Inductor zeroes an L2 cache's size a hundred times for each configuration of a kernel
// (torch/_inductor/runtime/benchmarking.py).
void fill(void* to, int value, size_t size) {
    const size_t page = sysconf(_SC_PAGESIZE);
    char* const end = (char*)to + size;
    char* const first = (char*)(((uintptr_t)to + page - 1) & ~(page - 1));
    char* const last = (char*)((uintptr_t)end & ~(page - 1));
    // Only for blocks of `allocate`: for shared memory or a file, the system would restore the old content.
    if (value || last < first + 64 * page || device_of(to) < 0 || madvise(first, last - first, MADV_DONTNEED)) {
        memset(to, value, size);
        return;
    }
    memset(to, 0, first - (char*)to);
    memset(last, 0, end - last);
}

int device_of(const void* pointer) {
    std::lock_guard<std::mutex> guard(lock);
    auto block = blocks().upper_bound((char*)pointer);
    if (block == blocks().begin()) return -1;
    --block;
    return (char*)pointer < block->first + block->second.size ? block->second.device : -1;
}

void memory(int device, size_t* free, size_t* total) {
    std::lock_guard<std::mutex> guard(lock);
    *total = visible()[device].kind->memory;
    *free = *total - used_by_all(device);
}

// ---------------------------------------------------------------- the log

std::string quoted(const std::string& text) {
    std::string found = "\"";
    for (char letter : text) {
        if (letter == '"' || letter == '\\') found += '\\';
        found += (unsigned char)letter < 0x20 ? ' ' : letter;
    }
    return found + "\"";
}

void record(const char* event, const std::string& fields) {
    const std::string file = state_file("log.jsonl");
    if (file.empty()) return;
    // Open the file each time: a process may fork, and a test may empty the folder. One write keeps lines of processes
    // apart.
    int opened = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (opened < 0) return;
    const int index = visible().empty() ? -1 : visible()[current()].index;
    const std::string line = "{\"event\": " + quoted(event) + ", \"pid\": " + std::to_string(getpid()) +
                             ", \"device\": " + std::to_string(index) + fields + "}\n";
    if (write(opened, line.data(), line.size()) < 0) perror(file.c_str());
    close(opened);
}

static std::atomic<bool> compiles{!variable("CUDA_MADE_UP_COMPILING").empty()};  // initially true in a worker's subprocesses
static std::string refused_first;  // the first refused call of a compile
bool compiling() { return compiles; }

static thread_local cudaError_t last = cudaSuccess;
cudaError_t last_error(bool forget) {
    const cudaError_t found = last;
    if (forget) last = cudaSuccess;
    return found;
}

cudaError_t refuse(const char* what) {
    last = cudaErrorNotSupported;
    {
        std::lock_guard<std::mutex> guard(lock);
        if (compiling() && refused_first.empty()) refused_first = what;
    }
    record("refused", std::string(", \"what\": ") + quoted(what));
    fprintf(stderr, "made-up CUDA device: %s cannot be had without a GPU\n", what);
    return cudaErrorNotSupported;
}

}  // namespace made_up

// Returns the previous value.
extern "C" int made_up_cuda_compiling(int whether) {
    std::lock_guard<std::mutex> guard(made_up::lock);
    const bool before = made_up::compiles.exchange(whether != 0);
    if (whether) made_up::refused_first.clear();
    made_up::last = cudaSuccess;  // an old error must not fail the next graph's operators
    return before;
}
// The first call that was refused since the compile began, or "".
extern "C" const char* made_up_cuda_refused() { return made_up::refused_first.c_str(); }
