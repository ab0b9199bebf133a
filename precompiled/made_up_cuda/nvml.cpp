// NVML that knows of no device, under its name, so that a real one is not asked. torch would ask it how many GPUs there are
// (torch.cuda.device_count), and get the host's.
//
// Without nvmlInit, torch's Python takes the runtime's word. Its C++ looks all of these up where there is an NVML, and
// asks it for other processes when memory is out (c10/cuda/driver_api.cpp, CUDACachingAllocator.cpp).
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
