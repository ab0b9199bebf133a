// Registers our kernels with torch's dispatcher.
#pragma once
#include <torch/library.h>

namespace made_up {

// `take` registers kernels for aten's operators on CUDA. torch's warnings about replaced kernels are suppressed.
template <class Take>
bool taken_over(Take take) {
    struct Silent : c10::WarningHandler {
        void process(const c10::Warning&) override {}
    } silent;
    c10::WarningUtils::WarningHandlerGuard guard(&silent);
    // Never destroyed: the kernels stay for the life of the process.
    static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    take(*library);
    return true;
}

}  // namespace made_up
