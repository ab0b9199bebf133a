// Operators that torch has only for CUDA, by their definitions. operators.cpp computes the operators that they call.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "operators.h"

namespace {

using at::Tensor;

// The mask of dropout. The backward draws it again, from the seed that the forward returns.
Tensor kept(const Tensor& like, const Tensor& seed, double dropout_p) {
    auto generator = at::detail::getDefaultCPUGenerator().clone();
    generator.set_current_seed((uint64_t)seed.reshape({-1})[0].cpu().to(at::kLong).item<int64_t>());
    const Tensor drawn = at::empty(like.sizes(), like.options().device(at::kCPU)).bernoulli_(1 - dropout_p, generator);
    return drawn.to(like.device()) / (1 - dropout_p);
}

Tensor scores(const Tensor& query, const Tensor& key, const Tensor& bias, bool is_causal, double scale) {
    Tensor found = at::matmul(query.to(at::kFloat), key.to(at::kFloat).transpose(-2, -1)) * scale;
    if (bias.defined()) found = found + bias.to(at::kFloat);
    if (is_causal) {
        const Tensor allowed = at::ones({query.size(-2), key.size(-2)}, query.options().dtype(at::kBool)).tril();
        found = found.masked_fill(allowed.logical_not(), -INFINITY);
    }
    return found;
}

double scale_of(const Tensor& query, std::optional<double> scale) { return scale ? *scale : 1 / std::sqrt((double)query.size(-1)); }

// The shape is (batch, heads, length, size). The memory order is (batch, length, heads, size), as in CUDA's kernels.
Tensor by_length(const Tensor& result, const Tensor& like) {
    return at::empty({result.size(0), result.size(2), result.size(1), result.size(3)}, like.options()).transpose(1, 2).copy_(result);
}

// A copy of `result` whose dimensions have the memory order of `like`.
Tensor laid_out_as(const Tensor& like, const Tensor& result) {
    if (result.sizes() == like.sizes()) return at::empty_like(like).copy_(result);
    std::vector<int64_t> order(like.dim()), place(like.dim()), sizes;
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return like.stride(a) > like.stride(b); });
    for (size_t index = 0; index < order.size(); index++) {
        sizes.push_back(result.size(order[index]));
        place[order[index]] = index;
    }
    return at::empty(sizes, like.options()).permute(place).copy_(result);
}

// Several query heads may share one head of keys and values.
Tensor for_each_head(const Tensor& shared, const Tensor& query) {
    return shared.size(1) == query.size(1) ? shared : shared.repeat_interleave(query.size(1) / shared.size(1), 1);
}
Tensor of_shared_heads(const Tensor& gradient, const Tensor& shared) {
    if (gradient.size(1) == shared.size(1)) return gradient;
    return gradient.reshape({gradient.size(0), shared.size(1), -1, gradient.size(2), gradient.size(3)}).sum(2);
}

struct Attention {
    Tensor out, logsumexp;
};

Attention forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, const Tensor& seed, double dropout_p,
    bool is_causal, std::optional<double> scale
) {
    const Tensor all = scores(query, for_each_head(key, query), bias, is_causal, scale_of(query, scale));
    Tensor weights = at::softmax(all, -1);
    if (dropout_p > 0) weights = weights * kept(weights, seed, dropout_p);
    return {at::matmul(weights, for_each_head(value, query).to(at::kFloat)), at::logsumexp(all, {-1})};
}

struct Gradients {
    Tensor query, key, value, scores;
};

Gradients backward(
    const Tensor& grad, const Tensor& query, const Tensor& shared_key, const Tensor& shared_value, const Tensor& bias,
    const Tensor& seed, double dropout_p, bool is_causal, std::optional<double> scale
) {
    const Tensor key = for_each_head(shared_key, query), value = for_each_head(shared_value, query);
    const double factor = scale_of(query, scale);
    const Tensor weights = at::softmax(scores(query, key, bias, is_causal, factor), -1);
    const Tensor g = grad.to(at::kFloat);
    Tensor used = weights, of_weights = at::matmul(g, value.to(at::kFloat).transpose(-2, -1));
    if (dropout_p > 0) {
        const Tensor mask = kept(weights, seed, dropout_p);
        used = used * mask;
        of_weights = of_weights * mask;
    }
    const Tensor of_scores = weights * (of_weights - (of_weights * weights).sum(-1, true));
    return {
        at::matmul(of_scores, key.to(at::kFloat)) * factor,
        of_shared_heads(at::matmul(of_scores.transpose(-2, -1), query.to(at::kFloat)) * factor, shared_key),
        of_shared_heads(at::matmul(used.transpose(-2, -1), g), shared_value), of_scores
    };
}

Tensor new_seed(const Tensor& query, double dropout_p, at::IntArrayRef sizes, at::ScalarType kind) {
    const Tensor seed = dropout_p > 0 ? at::randint(0, INT32_MAX, sizes, query.options().dtype(at::kLong))
                                      : at::zeros(sizes, query.options().dtype(at::kLong));
    return seed.to(kind);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias, bool compute_log_sumexp,
    double dropout_p, bool is_causal, std::optional<double> scale
) {
    const Tensor seed = new_seed(query, dropout_p, {}, at::kLong);
    const Attention found = forward(query, key, value, bias.value_or(Tensor()), seed, dropout_p, is_causal, scale);
    const int64_t rows = compute_log_sumexp ? (query.size(2) + 31) / 32 * 32 : 0;  // padded to the kernel's tiles
    Tensor logsumexp = at::full({query.size(0), query.size(1), rows}, INFINITY, query.options().dtype(at::kFloat));
    if (rows) logsumexp.narrow(-1, 0, query.size(2)).copy_(found.logsumexp);
    return {by_length(found.out, query), logsumexp, seed, at::zeros({}, query.options().dtype(at::kLong))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, const Tensor&, const Tensor&,
    const Tensor& seed, const Tensor&, double dropout_p, std::array<bool, 4> wanted, bool is_causal, std::optional<double> scale
) {
    if (!grad.defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    const Gradients found = backward(grad, query, key, value, bias, seed, dropout_p, is_causal, scale);
    Tensor of_bias;
    if (bias.defined() && wanted[3]) {  // rows of whole tiles, as the kernel writes them
        std::vector<int64_t> sizes = bias.sizes().vec();
        sizes.back() = (sizes.back() + 15) / 16 * 16;
        of_bias = at::empty(sizes, bias.options()).narrow(-1, 0, bias.size(-1));
        of_bias.copy_(found.scores.sum_to_size(bias.sizes()));
    }
    return {by_length(found.query, query), by_length(found.key, key), by_length(found.value, value), of_bias};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> flash(
    const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool is_causal, bool, std::optional<double> scale
) {
    const Tensor seed = new_seed(query, dropout_p, {2}, at::kUInt64);
    const Attention found = forward(query, key, value, Tensor(), seed, dropout_p, is_causal, scale);
    Tensor out = at::empty_like(query).copy_(found.out);
    return {out,  found.logsumexp.contiguous(), Tensor(), Tensor(), query.size(2), key.size(2), seed,
            at::zeros({}, query.options().dtype(at::kUInt64)), at::empty({0}, query.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor&, const Tensor&, const Tensor&,
    const Tensor&, c10::SymInt, c10::SymInt, double dropout_p, bool is_causal, const Tensor& seed, const Tensor&,
    std::optional<double> scale
) {
    const Gradients found = backward(grad, query, key, value, Tensor(), seed, dropout_p, is_causal, scale);
    return {at::empty_like(query).copy_(found.query), at::empty_like(key).copy_(found.key), at::empty_like(value).copy_(found.value)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> cudnn(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& bias, bool, double dropout_p,
    bool is_causal, bool, std::optional<double> scale
) {
    const Tensor seed = new_seed(query, dropout_p, {}, at::kLong);
    const Attention found = forward(query, key, value, bias.value_or(Tensor()), seed, dropout_p, is_causal, scale);
    return {laid_out_as(query, found.out), found.logsumexp.unsqueeze(-1).contiguous(), Tensor(), Tensor(), query.size(2), key.size(2),
            seed, at::zeros({}, query.options().dtype(at::kLong)), Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor&, const Tensor&, const Tensor& seed,
    const Tensor&, const Tensor& bias, const Tensor&, const Tensor&, c10::SymInt, c10::SymInt, double dropout_p, bool is_causal,
    std::optional<double> scale
) {
    const Gradients found = backward(grad, query, key, value, bias, seed, dropout_p, is_causal, scale);
    return {at::empty_like(query).copy_(found.query), at::empty_like(key).copy_(found.key), at::empty_like(value).copy_(found.value)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm(
    const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, const std::optional<Tensor>& mean,
    const std::optional<Tensor>& variance, bool training, double momentum, double epsilon
) {
    auto [out, saved_mean, saved_inverse] = at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, epsilon);
    return {out, saved_mean, saved_inverse, at::empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(
    const Tensor& input, const Tensor& grad, const Tensor& weight, const std::optional<Tensor>& mean,
    const std::optional<Tensor>& variance, const std::optional<Tensor>& saved_mean, const std::optional<Tensor>& saved_inverse,
    double epsilon, const Tensor&
) {
    return at::native_batch_norm_backward(
        grad, input, weight, mean, variance, saved_mean, saved_inverse, true, epsilon, {true, true, true}
    );
}

const bool done = made_up::taken_over([](torch::Library& library) {
    library.impl("_scaled_dot_product_efficient_attention", TORCH_FN(efficient));
    library.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(efficient_backward));
    library.impl("_scaled_dot_product_flash_attention", TORCH_FN(flash));
    library.impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(flash_backward));
    library.impl("_scaled_dot_product_cudnn_attention", TORCH_FN(cudnn));
    library.impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(cudnn_backward));
    library.impl("cudnn_batch_norm", TORCH_FN(batch_norm));
    library.impl("cudnn_batch_norm_backward", TORCH_FN(batch_norm_backward));
});

}  // namespace
