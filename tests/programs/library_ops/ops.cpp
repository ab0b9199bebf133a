// Operators in C++, as a user's extension defines them. tests/support_library_ops.py builds this file.
#include <Python.h>

#include <ATen/ATen.h>
#include <ATen/core/op_registration/op_registration.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

// Defined in a separate shared library, so that a test can change the number quickly.
extern "C" int64_t pc_width();

namespace {

at::Tensor widened(const at::Tensor& x) { return at::cat({x, x.new_ones({pc_width()})}); }

// The size of the result, which a compile needs, depends on that library.
at::Tensor widened_meta(const at::Tensor& x) { return x.new_empty_symint({x.sym_size(0) + pc_width()}); }

at::Tensor scaled(const at::Tensor& x) { return x * 3; }

at::Tensor scaled_meta(const at::Tensor& x) { return at::empty_like(x); }

struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    at::AutoDispatchBelowADInplaceOrView below;
    static auto op = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("pc_library::scaled", "")
                         .typed<at::Tensor(const at::Tensor&)>();
    return op.call(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*, torch::autograd::variable_list gradients) {
    return {gradients[0] * 3};
  }
};

at::Tensor scaled_autograd(const at::Tensor& x) { return Scaled::apply(x); }

}  // namespace

TORCH_LIBRARY(pc_library, m) {
  m.def("widened(Tensor x) -> Tensor");
  m.def("scaled(Tensor x) -> Tensor");
  m.def("bare(Tensor x) -> Tensor");
}

TORCH_LIBRARY_IMPL(pc_library, CPU, m) {
  m.impl("widened", widened);
  m.impl("scaled", scaled);
  m.impl("bare", scaled);
}

TORCH_LIBRARY_IMPL(pc_library, Meta, m) {
  m.impl("widened", widened_meta);
  m.impl("scaled", scaled_meta);
}

TORCH_LIBRARY_IMPL(pc_library, Autograd, m) { m.impl("scaled", scaled_autograd); }

// This API of torch 1.0 does not record the source file of an operator.
static auto registry = torch::RegisterOperators().op(
    "pc_library::unknown(Tensor x) -> Tensor",
    torch::RegisterOperators::options().kernel(c10::DispatchKey::CPU, scaled).kernel(c10::DispatchKey::Meta, scaled_meta));

PyMODINIT_FUNC PyInit_pc_extension() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "pc_extension", nullptr, -1, nullptr};
  return PyModule_Create(&definition);
}
