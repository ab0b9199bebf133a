// The made-up devices of this process: which there are, what they say of themselves, whose memory is whose, and the log.
//
// CUDA_MADE_UP        the host's devices, by kind: "h100" or "h100,h100,a100"; kinds.py has the table. Or with their rows
//                     (kinds.py, like)
// CUDA_MADE_UP_STATE  a folder that all processes of such a host share: log, use of memory, devices that are lost
// CUDA_MADE_UP_COMPILING  set: this process compiles from its start, so a measured time is an error, as is a launch
// CUDA_VISIBLE_DEVICES as with CUDA: indices or (beginnings of) UUIDs; the list ends at the first that does not exist
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
    int index;  // on the host: not what a process with CUDA_VISIBLE_DEVICES calls it
    unsigned char uuid[16];
    std::string uuid_text() const;  // GPU-6d616465-7570-...: "made" "up" in ASCII
    std::string bus() const;
    bool lost() const;              // a file lost-<index> in the state folder says so, or lost-<index>-<pid>
    bool exclusive() const;         // one process's alone: a file exclusive-<index> there
};

const std::vector<Device>& host();     // all of the host
const std::vector<Device>& visible();  // this process's; "cuda:0" is the first of them
int current();                         // this thread's device, an index into visible()
bool select(int device);

int attribute(const Device& device, int which);  // CUdevice_attribute and cudaDeviceAttr have the same numbers
cudaError_t allocate(void** pointer, size_t size);
cudaError_t release(void* pointer);
void fill(void* to, int value, size_t size);
int device_of(const void* pointer);  // -1 where it is the host's memory
void memory(int device, size_t* free, size_t* total);

// One line of JSON for each event. `fields` begins with a comma or is empty.
void record(const char* event, const std::string& fields = "");
std::string quoted(const std::string& text);

// A process that compiles: times cannot be measured and kernels cannot be run, and whoever asks for either gets an error.
bool compiling();
// A launch into a stream that is being captured is a node of its graph.
void note_in_capture(void* stream);
// Whether the captures that are under way let this thread do what CUDA calls potentially unsafe; where one does not, it is
// broken, and cudaErrorStreamCaptureUnsupported. `waits`: for the whole device, which no capture allows.
cudaError_t captures_allow(const char* what, bool waits = false);
// An error that names what was asked for; on stderr as well, since torch shows CUDA's words alone.
cudaError_t refuse(const char* what);
// The last such error of this thread, which stays until it is asked for: torch looks for it after each launch.
cudaError_t last_error(bool forget);

}  // namespace made_up
