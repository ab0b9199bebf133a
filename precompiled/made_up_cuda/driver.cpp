// The part of the driver API (libcuda.so.1) that Triton's launchers and torch use. As in CUDA, a function belongs to
// the device that was current at its load, so launching another device's function fails. Launches are recorded, but no
// kernel runs, so the output memory keeps its content.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "cubin.h"
#include "device.h"

using namespace made_up;

namespace {

struct Module {
    int device;
    Cubin cubin;
};

struct Function {
    const Module* module;
    std::string name;
    Kernel kernel;
};

// A device's primary context. No other contexts exist. Never null, because null means that no context is current.
CUcontext context(int device) { return (CUcontext)(intptr_t)(0x1000 + device); }
int device_of_context(CUcontext context) { return (int)((intptr_t)context - 0x1000); }

CUresult load(CUmodule* module, const std::vector<char>& data, const std::string& from) {
    const Device& device = visible()[current()];
    if (device.lost()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (const cudaError_t allowed = captures_allow("a load of a module")) return (CUresult)allowed;
    auto* loaded = new Module{current(), {}};
    try {
        loaded->cubin = read_cubin(data);
    } catch (const std::invalid_argument& error) {
        record("refused", ", \"what\": " + quoted(from + ": " + error.what()));
        return CUDA_ERROR_INVALID_IMAGE;  // also for PTX, which only a driver can assemble
    }
    const int own = device.kind->major * 10 + device.kind->minor;
    record("load", ", \"from\": " + quoted(from) + ", \"architecture\": " + std::to_string(loaded->cubin.architecture));
    if (loaded->cubin.architecture != own) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *module = (CUmodule)loaded;
    return CUDA_SUCCESS;
}

// The caller passes no size. A cubin ends with its last table. Of other data, 64 bytes suffice.
std::vector<char> image(const void* data) {
    auto* bytes = (const char*)data;
    if (memcmp(bytes, "\177ELF", 4)) return {bytes, bytes + 64};
    unsigned long long sections = *(const unsigned long long*)(bytes + 0x28), segments = *(const unsigned long long*)(bytes + 0x20);
    auto half = [&](int offset) { return *(const unsigned short*)(bytes + offset); };
    size_t end = std::max(sections + half(0x3a) * half(0x3c), segments + half(0x36) * half(0x38));
    return {bytes, bytes + end};
}

CUresult launch(Function* function, const unsigned grid[3], unsigned threads, unsigned shared, CUstream stream) {
    if (function->module->device != current()) return CUDA_ERROR_INVALID_HANDLE;
    if (visible()[current()].lost()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (compiling()) return (CUresult)refuse(("a run of the kernel " + function->name).c_str());
    note_in_capture(stream);
    record(
        "launch", ", \"kernel\": " + quoted(function->name) + ", \"grid\": [" + std::to_string(grid[0]) + ", " +
                   std::to_string(grid[1]) + ", " + std::to_string(grid[2]) + "], \"threads\": " + std::to_string(threads) +
                   ", \"shared\": " + std::to_string(shared) + ", \"stream\": " + std::to_string((size_t)stream)
    );
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) { return visible().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) { *version = CUDA_VERSION; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) {
    *text = cudaGetErrorName((cudaError_t)error);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) { *count = (int)visible().size(); return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    if (ordinal < 0 || ordinal >= (int)visible().size()) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
    *value = attribute(visible()[device], which);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
    snprintf(name, size, "%s", visible()[device].kind->name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    memcpy(uuid->bytes, visible()[device].uuid, 16);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) { *bytes = visible()[device].kind->memory; return CUDA_SUCCESS; }

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) { *flags = 0; *active = 1; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* found, CUdevice device) { *found = context(device); return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext* found) { *found = context(current()); return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext wanted) {
    return !wanted || select(device_of_context(wanted)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuCtxGetDevice(CUdevice* device) { *device = current(); return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext wanted) { return cuCtxSetCurrent(wanted); }
CUresult cuCtxPopCurrent(CUcontext* found) {
    if (found) *found = context(current());
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() { return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t* value, CUlimit) { *value = 1 << 20; return CUDA_SUCCESS; }

CUresult cuModuleLoadData(CUmodule* module, const void* data) { return load(module, image(data), "memory"); }
CUresult cuModuleLoadDataEx(CUmodule* module, const void* data, unsigned, CUjit_option*, void**) {
    return load(module, image(data), "memory");
}
CUresult cuModuleLoad(CUmodule* module, const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    return load(module, {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}, path);
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }  // torch and Triton keep their functions
CUresult cuModuleGetFunction(CUfunction* found, CUmodule loaded, const char* name) {
    auto* module = (Module*)loaded;
    auto kernel = module->cubin.kernels.find(name);
    if (kernel == module->cubin.kernels.end()) return CUDA_ERROR_NOT_FOUND;
    *found = (CUfunction) new Function{module, name, kernel->second};
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction asked) {
    auto* function = (Function*)asked;
    switch (which) {
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = function->kernel.registers; break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = function->kernel.local_bytes; break;
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = function->module->cubin.architecture; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction asked, CUfunction_attribute which, int value) {
    auto* function = (Function*)asked;
    // Triton requests a kernel's shared memory. A configuration that does not fit must fail, as on a real device.
    const bool fits = which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
                      value <= (int)visible()[function->module->device].kind->shared_block;
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

CUresult cuLaunchKernel(
    CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
    void**, void**
) {
    const unsigned grid[] = {x, y, z};
    return launch((Function*)function, grid, bx * by * bz, shared, stream);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void**, void**) {
    const unsigned grid[] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    return launch((Function*)function, grid, threads, config->sharedMemBytes, config->hStream);
}
CUresult cuLaunchCooperativeKernel(
    CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream,
    void**
) {
    const unsigned grid[] = {x, y, z};
    return launch((Function*)function, grid, bx * by * bz, shared, stream);
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr pointer) {
    const int device = device_of((void*)pointer);
    switch (which) {
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            if (device < 0) return CUDA_ERROR_INVALID_VALUE;  // so that Triton refuses a CPU tensor
            *(CUdeviceptr*)value = pointer;
            break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned*)value = device < 0 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)value = device; break;
        default: return (CUresult)refuse("this attribute of a pointer");
    }
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t) {
    *blocks = std::max(1, (int)visible()[current()].kind->threads / std::max(1, threads));
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
    *clusters = (int)visible()[current()].kind->multiprocessors;
    return CUDA_SUCCESS;
}
CUresult cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill
) {
    memset(map, 0, sizeof *map);
    return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    return (CUresult)cudaThreadExchangeStreamCaptureMode((cudaStreamCaptureMode*)mode);
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return (CUresult)cudaStreamIsCapturing((cudaStream_t)stream, (cudaStreamCaptureStatus*)status);
}

}  // extern "C"
