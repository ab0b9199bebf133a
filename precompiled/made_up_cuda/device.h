// The made-up devices of this process, their properties and memory, and the log.
//
// CUDA_MADE_UP            the host's devices: kinds of kinds.py ("h100,h100,a100"), or their rows (kinds.py, like)
// CUDA_MADE_UP_STATE      a folder that all processes of the host share: the log, the use of memory, lost devices
// CUDA_MADE_UP_COMPILING  if set, this process compiles from its start (`compiling`)
// CUDA_VISIBLE_DEVICES    as in CUDA: indices or (beginnings of) UUIDs, up to the first that does not exist
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <string>
#include <vector>

namespace made_up {

struct Kind {
    const char *code, *name;
    unsigned long long major, minor, multiprocessors, memory, threads, shared_block, shared_multiprocessor, l2, bus_bits,
        memory_mhz, sm_mhz;
};

struct Device {
    const Kind* kind;
    int index;  // on the host, regardless of CUDA_VISIBLE_DEVICES
    unsigned char uuid[16];
    std::string uuid_text() const;  // GPU-6d616465-7570-...: "made" "up" in ASCII
    std::string bus() const;
    bool lost() const;              // the state folder has a file lost-<index> or lost-<index>-<pid>
    bool exclusive() const;         // exclusive-process mode: the folder has a file exclusive-<index>
};

const std::vector<Device>& host();     // all devices of the host
const std::vector<Device>& visible();  // this process's devices; "cuda:0" is the first
int current();                         // this thread's device, an index into visible()
bool select(int device);

int attribute(const Device& device, int which);  // CUdevice_attribute and cudaDeviceAttr have the same numbers
cudaError_t allocate(void** pointer, size_t size);
cudaError_t release(void* pointer);
void fill(void* to, int value, size_t size);
int device_of(const void* pointer);  // -1 for the host's own memory
void memory(int device, size_t* free, size_t* total);

// One line of JSON for each event. `fields` begins with a comma or is empty.
void record(const char* event, const std::string& fields = "");
std::string quoted(const std::string& text);

// Whether this process compiles. If so, measuring a time or running a kernel is an error.
bool compiling();
// Records a launch. In a captured stream, it becomes a node of the graph.
void note_in_capture(void* stream);
// Whether the current captures allow this thread a call that CUDA calls potentially unsafe. If not, breaks them and
// returns cudaErrorStreamCaptureUnsupported. `waits`: the call waits for the device, which no capture allows.
cudaError_t captures_allow(const char* what, bool waits = false);
// Returns an error, and prints what was refused to stderr, because torch shows only CUDA's message.
cudaError_t refuse(const char* what);
// This thread's last error of `refuse`, which torch reads after each launch. `forget` clears it.
cudaError_t last_error(bool forget);

}  // namespace made_up
