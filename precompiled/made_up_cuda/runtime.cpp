// The part of CUDA's runtime API that torch uses. Its definitions precede those of CUDA's own library, because this
// library is in the global scope when torch is loaded. Device memory is the host's, so copies are real. Kernels of
// torch and of CUDA's libraries are refused. torch's operators need no kernels, because operators.cpp computes them on
// the CPU.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "device.h"

using namespace made_up;

namespace {

// Called when torch first queries the devices. From then on, the CPU computes its operators.
void take_over_operators() {
    static const bool done = [] {
        Dl_info here;
        dladdr((void*)&take_over_operators, &here);
        std::string path = here.dli_fname;
        path = path.substr(0, path.rfind('/')) + "/operators.so";
        // Not in a process without torch (nvidia-smi), because operators.so would load torch's libraries.
        if (!dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD)) return false;
        if (!dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
            fprintf(stderr, "made-up CUDA device: %s\n", dlerror());
            abort();  // otherwise all of torch's kernels would be refused later
        }
        return true;
    }();
    (void)done;
}

}  // namespace

extern "C" {

// ---------------------------------------------------------------- devices

cudaError_t cudaGetDeviceCount(int* count) {
    take_over_operators();
    *count = (int)visible().size();
    return *count ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* device) { *device = current(); return visible().empty() ? cudaErrorNoDevice : cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (!select(device)) return cudaErrorInvalidDevice;
    return visible()[device].lost() ? cudaErrorDevicesUnavailable : cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
    *value = attribute(visible()[device], which);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int ordinal) {
    if (ordinal < 0 || ordinal >= (int)visible().size()) return cudaErrorInvalidDevice;
    const Device& device = visible()[ordinal];
    const Kind& kind = *device.kind;
    memset(found, 0, sizeof *found);
    snprintf(found->name, sizeof found->name, "%s", kind.name);
    memcpy(found->uuid.bytes, device.uuid, 16);
    found->totalGlobalMem = kind.memory;
    found->sharedMemPerBlock = 48 << 10;
    found->regsPerBlock = found->regsPerMultiprocessor = 64 << 10;
    found->warpSize = 32;
    found->maxThreadsPerBlock = found->maxThreadsDim[0] = found->maxThreadsDim[1] = 1024;
    found->maxThreadsDim[2] = 64;
    found->maxGridSize[0] = 0x7fffffff;
    found->maxGridSize[1] = found->maxGridSize[2] = 65535;
    found->major = kind.major;
    found->minor = kind.minor;
    found->multiProcessorCount = kind.multiprocessors;
    found->maxThreadsPerMultiProcessor = kind.threads;
    found->l2CacheSize = kind.l2;
    found->sharedMemPerMultiprocessor = kind.shared_multiprocessor;
    found->sharedMemPerBlockOptin = kind.shared_block;
    found->memoryBusWidth = kind.bus_bits;
    found->unifiedAddressing = found->concurrentKernels = found->streamPrioritiesSupported = 1;
    found->textureAlignment = 512;
    found->pciBusID = device.index + 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    snprintf(text, size, "%s", visible()[device].bus().c_str());
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -5; return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 0; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
    if (!visible().empty() && visible()[current()].lost()) return cudaErrorDevicesUnavailable;
    return captures_allow("cudaDeviceSynchronize", true);
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit) { *value = 1 << 20; return cudaSuccess; }
cudaError_t cudaGetLastError() { return last_error(true); }
cudaError_t cudaPeekAtLastError() { return last_error(false); }
const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorNoDevice: return "cudaErrorNoDevice";
        case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
        default: return "an error of the made-up CUDA device";
    }
}
const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorNotSupported: return "this cannot be had without a GPU (the made-up CUDA device said what, on stderr)";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected (made-up CUDA)";
        case cudaErrorDevicesUnavailable: return "the made-up CUDA device is lost";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        default: return cudaGetErrorName(error);
    }
}

// ---------------------------------------------------------------- memory

cudaError_t cudaMalloc(void** pointer, size_t size) {
    const cudaError_t allowed = captures_allow("cudaMalloc");
    return allowed ? allowed : allocate(pointer, size);
}
cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t) { return allocate(pointer, size); }
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t size, cudaMemPool_t, cudaStream_t) { return allocate(pointer, size); }
cudaError_t cudaMallocManaged(void** pointer, size_t size, unsigned) { return allocate(pointer, size); }
cudaError_t cudaFree(void* pointer) { return release(pointer); }
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return release(pointer); }
cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
    return posix_memalign(pointer, 4096, size) ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t size) { return cudaHostAlloc(pointer, size, 0); }
cudaError_t cudaFreeHost(void* pointer) { free(pointer); return cudaSuccess; }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    if (visible().empty()) return cudaErrorNoDevice;
    memory(current(), free, total);
    return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) { memmove(to, from, size); return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) {
    memmove(to, from, size);
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t) {
    memmove(to, from, size);
    return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t size) { fill(to, value, size); return cudaSuccess; }
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t) { fill(to, value, size); return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* pointer) {
    const int device = device_of(pointer);
    memset(found, 0, sizeof *found);
    found->type = device < 0 ? cudaMemoryTypeUnregistered : cudaMemoryTypeDevice;
    found->device = device < 0 ? cudaInvalidDeviceId : device;
    (device < 0 ? found->hostPointer : found->devicePointer) = (void*)pointer;
    return cudaSuccess;
}

// ---------------------------------------------------------------- kernels of torch's own

static std::map<const void*, std::string>& kernel_names() {
    static auto* all = new std::map<const void*, std::string>;
    return *all;
}
void** __cudaRegisterFatBinary(void*) { return (void**)calloc(1, 64); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    kernel_names()[function] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = *block = dim3{1, 1, 1};
    *shared = 0;
    *(void**)stream = nullptr;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) { *kernel = (cudaKernel_t)function; return cudaSuccess; }
static cudaError_t no_launch(const void* function) {
    auto name = kernel_names().find(function);
    return refuse(("torch's kernel " + (name == kernel_names().end() ? std::string("of no name") : name->second)).c_str());
}
cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) { return no_launch(function); }
cudaError_t __cudaLaunchKernel(cudaKernel_t function, dim3, dim3, void**, size_t, cudaStream_t) {
    return no_launch((const void*)function);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) { return no_launch(function); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) { return no_launch(function); }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
    memset(found, 0, sizeof *found);
    found->maxThreadsPerBlock = 1024;
    found->numRegs = 32;
    found->binaryVersion = found->ptxVersion = (int)(visible()[current()].kind->major * 10 + visible()[current()].kind->minor);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) {
    *blocks = 1;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) { *blocks = 1; return cudaSuccess; }

// ---------------------------------------------------------------- the driver's functions, by name

static cudaError_t entry_point(const char* name, void** found, cudaDriverEntryPointQueryResult* result) {
    Dl_info here;
    dladdr((void*)&entry_point, &here);
    static void* self = dlopen(here.dli_fname, RTLD_NOW);
    *found = dlsym(self, name);
    if (result) *result = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *found ? cudaSuccess : cudaErrorSymbolNotFound;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** found, unsigned long long, cudaDriverEntryPointQueryResult* result) {
    return entry_point(name, found, result);
}
cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** found, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* result
) {
    return entry_point(name, found, result);
}

}  // extern "C"
