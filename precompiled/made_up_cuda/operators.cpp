// Computes torch's operators of a made-up device on the CPU, so that eager code and compiles get correct values.
// Inductor folds constants by running operators on the device (fx_passes/joint_graph.py). If they computed nothing, the
// kernels would silently contain arbitrary memory content.
//
// Device memory is the host's, so an operator's arguments become CPU tensors over the same memory, and nothing is copied.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/native/ConvUtils.h>
#include <c10/core/CPUAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <unordered_map>
#include <unordered_set>

#include "operators.h"

namespace {

// The arguments of one call, as CPU tensors.
class Arguments {
  public:
    at::Tensor on_cpu(const at::Tensor& tensor) {
        if (!tensor.defined() || !tensor.is_cuda()) return tensor;
        TORCH_CHECK(tensor.layout() == at::kStrided, "the made-up CUDA device computes on dense tensors only");
        if (!device_) device_ = tensor.device();
        auto known = aliases_.find(tensor.unsafeGetTensorImpl());
        if (known != aliases_.end()) return known->second;
        at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
            storage_of(tensor), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype()
        );
        auto* impl = alias.unsafeGetTensorImpl();
        impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
        if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
        alias._set_conj(tensor.is_conj());
        alias._set_neg(tensor.is_neg());
        aliases_[tensor.unsafeGetTensorImpl()] = alias;
        originals_[impl] = tensor;
        return alias;
    }

    c10::IValue on_cpu(const c10::IValue& value) {
        if (value.isTensor()) return on_cpu(value.toTensor());
        if (value.isTensorList()) {
            std::vector<at::Tensor> found;
            for (const at::Tensor& one : value.toTensorVector()) found.push_back(on_cpu(one));
            return found;
        }
        if (value.isOptionalTensorList()) {
            c10::List<std::optional<at::Tensor>> found;
            for (const auto& one : value.toOptionalTensorVector())
                found.push_back(one ? std::optional<at::Tensor>(on_cpu(*one)) : std::nullopt);
            return found;
        }
        if (value.isDevice()) {
            if (value.toDevice().is_cuda()) device_ = value.toDevice();
            return value.toDevice().is_cuda() ? c10::IValue(c10::Device(c10::kCPU)) : value;
        }
        if (value.isGenerator()) {
            generator_ = value.toGenerator();
            return c10::IValue();
        }
        return value;
    }

    // Converts a result to an argument itself, a view of an argument, or new device memory.
    at::Tensor on_device(const at::Tensor& result) {
        if (!result.defined() || !result.device().is_cpu()) return result;
        auto argument = originals_.find(result.unsafeGetTensorImpl());
        if (argument != originals_.end()) return argument->second;
        auto viewed = viewed_.find(result.storage().unsafeGetStorageImpl());
        if (viewed != viewed_.end())
            return viewed->second.as_strided(result.sizes(), result.strides(), result.storage_offset());
        auto options = result.options().device(device());
        at::Tensor found = at::empty_strided(result.sizes(), result.strides(), options);
        on_cpu(found).copy_(result.resolve_conj().resolve_neg());
        return found;
    }

    // An operator may have resized an `out=` argument, and so moved it to new memory.
    void adopt_new_sizes() {
        for (auto& [impl, original] : originals_) {
            const at::Tensor& alias = aliases_[original.unsafeGetTensorImpl()];
            if (alias.sizes() == original.sizes() && alias.strides() == original.strides() &&
                alias.storage().data() == original.storage().data())
                continue;
            original.resize_(alias.sizes());
            original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
            TORCH_CHECK(original.storage().nbytes() >= alias.storage().nbytes(), "the made-up CUDA device lost a size");
            memcpy(original.storage().mutable_data(), alias.storage().data(), alias.storage().nbytes());
        }
    }

    c10::Device device() const { return device_ ? *device_ : c10::Device(c10::kCUDA, c10::cuda::current_device()); }
    const std::optional<at::Generator>& generator() const { return generator_; }

  private:
    c10::Storage storage_of(const at::Tensor& tensor) {
        auto* impl = tensor.storage().unsafeGetStorageImpl();
        auto known = storages_.find(impl);
        if (known != storages_.end()) return known->second;
        c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
            c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
            c10::DataPtr(impl->mutable_data_ptr().get(), c10::Device(c10::kCPU)), c10::GetCPUAllocator(), /*resizable=*/true
        ));
        viewed_[storage.unsafeGetStorageImpl()] = tensor;
        storages_.emplace(impl, storage);
        return storage;
    }

    std::optional<c10::Device> device_;
    std::optional<at::Generator> generator_;
    std::unordered_map<c10::TensorImpl*, at::Tensor> aliases_, originals_;  // keys: the device's tensor; its alias
    std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
    std::unordered_map<c10::StorageImpl*, at::Tensor> viewed_;
};

// The CPU's generator gets its seed from the device's generator, so that seeds and restored states have their usual
// effect.
class Drawing {
  public:
    Drawing(const std::optional<at::Generator>& given, c10::Device device) : cpu_(at::detail::getDefaultCPUGenerator()) {
        const at::Generator generator = given && given->defined() ? *given : at::cuda::detail::getDefaultCUDAGenerator(device.index());
        auto* philox = at::check_generator<at::CUDAGeneratorImpl>(generator);
        uint64_t seed = 0, offset = 0;
        {
            std::lock_guard<std::mutex> guard(philox->mutex_);
            const at::PhiloxCudaState state = philox->philox_cuda_state(4);
            if (!state.captured_) {
                seed = state.seed_.val;
                offset = state.offset_.val;
            }
        }
        std::lock_guard<std::mutex> guard(cpu_.mutex());
        saved_ = cpu_.get_state();
        cpu_.set_current_seed(seed * 0x9e3779b97f4a7c15ull + offset);
    }
    ~Drawing() {
        std::lock_guard<std::mutex> guard(cpu_.mutex());
        cpu_.set_state(saved_);
    }

  private:
    at::Generator cpu_;
    at::Tensor saved_;
};

bool draws(const c10::OperatorHandle& op) {
    for (const auto& argument : op.schema().arguments())
        if (argument.name() == "generator") return true;
    return op.hasTag(at::Tag::nondeterministic_seeded);
}

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const size_t taken = op.schema().arguments().size();
    Arguments arguments;
    const size_t first = stack->size() - taken;
    for (size_t index = first; index < stack->size(); index++) (*stack)[index] = arguments.on_cpu((*stack)[index]);
    {
        std::optional<Drawing> drawing;
        if (draws(op)) drawing.emplace(arguments.generator(), arguments.device());
        at::AutoDispatchBelowADInplaceOrView below;
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    }
    arguments.adopt_new_sizes();
    for (size_t index = first; index < stack->size(); index++) {
        c10::IValue& value = (*stack)[index];
        if (value.isTensor()) {
            value = arguments.on_device(value.toTensor());
        } else if (value.isTensorList()) {
            std::vector<at::Tensor> found;
            for (const at::Tensor& one : value.toTensorVector()) found.push_back(arguments.on_device(one));
            value = found;
        }
    }
}

// Operators that read metadata, allocate, or copy single values. torch's own CUDA code runs them on runtime.cpp.
bool computes_nothing(const c10::OperatorHandle& op) {
    static const std::unordered_set<std::string> names = {
        "aten::empty", "aten::empty_strided", "aten::_efficientzerotensor", "aten::resize_", "aten::set_", "aten::as_strided",
        "aten::view", "aten::_reshape_alias", "aten::unfold", "aten::is_set_to", "aten::record_stream", "aten::is_pinned",
        "aten::_pin_memory", "aten::_local_scalar_dense", "aten::_fused_sdp_choice", "aten::_has_same_storage_numel",
    };
    if (names.count(op.schema().name())) return true;
    for (const auto& result : op.schema().returns())
        if (result.alias_info() && !result.alias_info()->isWrite()) return true;  // a view
    return false;
}

// ---------------------------------------------------------------- where the CPU's operator is not enough

at::Tensor& zero(at::Tensor& self) {
    if (!self.is_non_overlapping_and_dense()) return self.fill_(0);
    cudaMemset(self.mutable_data_ptr(), 0, self.nbytes());
    return self;
}

// CUDA's histc also accepts integers (for the routing of a mixture of experts).
at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
    if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
        at::Tensor found = at::empty({bins}, self.options());
        return at::histc_out(found, self, bins, min, max);
    }
    return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
}

// A result's memory format depends on the kernel that CUDA would choose, and Inductor's code asserts the format
// (torch/_subclasses/fake_impls.py, conv).
at::MemoryFormat format_of(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups,
    at::OptionalSymIntArrayRef bias_sizes
) {
    const auto backend = at::native::select_conv_backend(
        input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, bias_sizes
    );
    // A 1D convolution has a 2D format.
    return input.dim() == 3
        ? at::native::_determine_backend_memory_format(input.contiguous().unsqueeze(2), weight.unsqueeze(2), backend)
        : at::native::_determine_backend_memory_format(input, weight, backend);
}

at::Tensor laid_out(const at::Tensor& result, at::MemoryFormat format) {
    if (!result.defined()) return result;
    const bool flat = result.dim() == 3 && format == at::MemoryFormat::ChannelsLast;
    return flat ? result.unsqueeze(2).contiguous(format).squeeze(2) : result.contiguous(format);
}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups
) {
    const at::MemoryFormat format =
        format_of(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, std::nullopt);
    Arguments arguments;
    const std::optional<at::Tensor> moved = bias ? std::optional<at::Tensor>(arguments.on_cpu(*bias)) : std::nullopt;
    at::AutoDispatchBelowADInplaceOrView below;
    const at::Tensor found = at::convolution_symint(
        arguments.on_cpu(input), arguments.on_cpu(weight), moved, stride, padding, dilation, transposed, output_padding, groups
    );
    return arguments.on_device(laid_out(found, format));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight, at::OptionalSymIntArrayRef bias_sizes,
    c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed,
    c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> wanted
) {
    const at::MemoryFormat format =
        format_of(input, weight, std::nullopt, stride, padding, dilation, transposed, output_padding, groups, bias_sizes);
    Arguments arguments;
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [of_input, of_weight, of_bias] = at::convolution_backward_symint(
        arguments.on_cpu(grad), arguments.on_cpu(input), arguments.on_cpu(weight), bias_sizes, stride, padding, dilation, transposed,
        output_padding, groups, wanted
    );
    return {
        arguments.on_device(laid_out(of_input, format)), arguments.on_device(laid_out(of_weight, format)),
        arguments.on_device(of_bias)
    };
}

bool is_ours(const c10::OperatorName& name) {
    return name == c10::OperatorName("aten::zero_", "") || name == c10::OperatorName("aten::histc", "");
}

// `compute` serves these, too: torch has no separate CUDA versions of them, but its common versions launch kernels.
const char* const WITHOUT_KERNEL[] = {"copy_", "_copy_from_and_resize"};

const bool done = made_up::taken_over([](torch::Library& library) {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
        auto op = dispatcher.findSchema(name);
        if (!op || name.name.rfind("aten::", 0) != 0 || is_ours(name) || computes_nothing(*op)) continue;
        if (!op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
        const std::string text = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
        library.impl(text.c_str(), torch::CppFunction::makeFromBoxedFunction<&compute>());
    }
    library.impl("zero_", TORCH_FN(zero));
    library.impl("histc", TORCH_FN(histc));
    library.impl("convolution", TORCH_FN(convolution));
    library.impl("convolution_backward", TORCH_FN(convolution_backward));
    for (const char* name : WITHOUT_KERNEL)
        library.impl(name, torch::CppFunction::makeFromBoxedFunction<&compute>());
});

}  // namespace
