// nvidia-smi of a host with made-up devices, with the options that the daemon (service/gpus.py) and people (-L) use.
#include <cstdio>
#include <cstring>

#include "device.h"

int main(int count, char** arguments) {
    const bool list = count == 2 && !strcmp(arguments[1], "-L");
    const bool query = count >= 2 && !strcmp(arguments[1], "--query-gpu=index,uuid,name");
    if (!list && !query) {
        fprintf(stderr, "made-up CUDA device: nvidia-smi -L, or --query-gpu=index,uuid,name\n");
        return 2;
    }
    for (const made_up::Device& device : made_up::host()) {
        if (device.lost()) continue;
        if (list) printf("GPU %d: %s (UUID: %s)\n", device.index, device.kind->name, device.uuid_text().c_str());
        else printf("%d, %s, %s\n", device.index, device.uuid_text().c_str(), device.kind->name);
    }
    return 0;
}
