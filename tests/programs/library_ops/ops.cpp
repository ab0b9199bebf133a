// Operators in C++, as an extension of somebody's has them (tests/support_library_ops.py builds it).
#include <Python.h>

#include <ATen/ATen.h>
#include <ATen/core/op_registration/op_registration.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

// In a library of its own, so that an edit of it takes no time to build.
extern "C" int64_t pc_width();

namespace {

at::Tensor widened(const at::Tensor& x) { return at::cat({x, x.new_ones({pc_width()})}); }

// Its size, which a compile asks for, is that library's to say.
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

// The API of torch 1.0, which says of no operator where it is from.
static auto registry = torch::RegisterOperators().op(
    "pc_library::unknown(Tensor x) -> Tensor",
    torch::RegisterOperators::options().kernel(c10::DispatchKey::CPU, scaled).kernel(c10::DispatchKey::Meta, scaled_meta));

PyMODINIT_FUNC PyInit_pc_extension() {
  static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "pc_extension", nullptr, -1, nullptr};
  return PyModule_Create(&definition);
}
