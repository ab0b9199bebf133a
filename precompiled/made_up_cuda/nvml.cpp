// Replaces NVML by a library without devices. Otherwise torch would count the host's own GPUs
// (torch.cuda.device_count).
//
// Without nvmlInit, torch's Python code uses the runtime's count of devices. Its C++ code looks up all of these
// functions, and queries other processes if memory runs out (c10/cuda/driver_api.cpp, CUDACachingAllocator.cpp).
namespace {
constexpr int SUCCESS = 0, NOT_SUPPORTED = 3;
}

extern "C" {
int nvmlInit_v2() { return SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
    *device = nullptr;
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
    *count = 0;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, void*) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return NOT_SUPPORTED; }
int nvmlSystemGetCudaDriverVersion_v2(int*) { return NOT_SUPPORTED; }
}
