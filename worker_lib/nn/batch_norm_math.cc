#include "worker_lib/nn/batch_norm_math.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/nn/core/channel_loops.h"

namespace ddprun {
namespace {

using torch::Tensor;

// --- by planes ---

// Below this length, the call for each plane would cost more than the plane itself.
constexpr std::int64_t kShortestPlane = 16;
constexpr std::int64_t kElementsOfThread = 1 << 15;  // below this a thread is not worth it

// The planes of a contiguous tensor [N, C, plane].
struct Planes {
  explicit Planes(const Tensor& tensor)
      : batch(tensor.size(0)),
        channels(tensor.size(1)),
        length(tensor.numel() / std::max<std::int64_t>(1, batch * channels)) {}

  // Calls use(channel, offset of a plane) for the planes of a channel, in the order of the
  // batch. One thread handles a whole channel, so its sums have the same bits for any number of
  // threads.
  template <class Use>
  void for_each(Use use) const {
    const std::int64_t of_channel = std::max<std::int64_t>(1, batch * length);
    at::parallel_for(0, channels, std::max<std::int64_t>(1, kElementsOfThread / of_channel),
                     [&](std::int64_t first, std::int64_t last) {
                       for (std::int64_t c = first; c < last; ++c)
                         for (std::int64_t n = 0; n < batch; ++n)
                           use(c, (n * channels + c) * length);
                     });
  }
  std::size_t count() const { return static_cast<std::size_t>(length); }

  std::int64_t batch, channels, length;
};

bool has_planes(const Tensor& input) {
  const bool is_plain = input.is_cpu() && input.is_contiguous() && input.numel() > 0;
  const auto type = input.scalar_type();
  return is_plain && (type == torch::kFloat32 || type == torch::kFloat64) &&
         Planes(input).length >= kShortestPlane;
}

// The vectors on a CPU are float64, but those of moments_row() may be float32.
bool goes_by_planes(const Tensor& input, const Tensor& mean) {
  return has_planes(input) && mean.scalar_type() == torch::kFloat64;
}

// Calls use(T()) with the tensor's type, one of those that has_planes() accepts.
template <class Use>
void with_type(const Tensor& tensor, Use use) {
  if (tensor.scalar_type() == torch::kFloat32)
    use(float());
  else
    use(double());
}

Moments moments_of_planes(const Tensor& input) {
  const Planes planes(input);
  const auto channels = static_cast<std::size_t>(planes.channels);
  std::vector<double> shift(channels), sums(channels), squares(channels);
  with_type(input, [&]<class T>(T) {
    const T* x = input.const_data_ptr<T>();
    // The shift is one of the channel's values. The mean is at most sqrt(count) standard
    // deviations away from it. So the variance loses no more digits than the count has.
    for (std::size_t c = 0; c < channels; ++c)
      shift[c] = static_cast<double>(x[c * planes.count()]);
    planes.for_each([&](std::int64_t channel, std::int64_t offset) {
      const auto c = static_cast<std::size_t>(channel);
      add_moments(x + offset, planes.count(), shift[c], sums[c], squares[c]);
    });
  });
  const auto count = static_cast<double>(planes.batch * planes.length);
  for (std::size_t c = 0; c < channels; ++c) {
    squares[c] = std::max(squares[c] - sums[c] * sums[c] / count, 0.0);  // keeps a NaN
    sums[c] = shift[c] + sums[c] / count;
  }
  Moments result(channels);
  result.merge(count, sums, squares);
  return result;
}

// --- by blocks ---

// On a CPU a block fits a core's cache, so that the wider type causes no memory traffic.
constexpr std::int64_t kBlockElements = 1 << 16;
constexpr std::int64_t kDeviceBlockElements = 1 << 24;

// Calls use(first, rows) for each block of rows of the batch; never for an empty tensor.
template <class Use>
void for_each_block(const Tensor& tensor, Use use) {
  if (tensor.numel() == 0) return;
  const std::int64_t of_row = tensor.numel() / tensor.size(0);
  const std::int64_t elements = tensor.is_cpu() ? kBlockElements : kDeviceBlockElements;
  const std::int64_t rows = std::max<std::int64_t>(1, elements / of_row);
  for (std::int64_t first = 0; first < tensor.size(0); first += rows)
    use(first, std::min(rows, tensor.size(0) - first));
}

// Returns all dimensions except that of the channels.
std::vector<std::int64_t> reduced_dimensions(const Tensor& tensor) {
  std::vector<std::int64_t> dimensions = {0};
  for (std::int64_t i = 2; i < tensor.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

// Returns one value for each channel, in a shape that broadcasts over the tensor.
Tensor along_channels(const Tensor& values, const Tensor& tensor) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(tensor.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

// Returns rows in the dtype of the computation.
Tensor wide_rows(const Tensor& tensor, std::int64_t first, std::int64_t rows,
                 torch::ScalarType type) {
  return tensor.narrow(0, first, rows).to(type);
}

// Returns x - mean, in the dtype of the mean.
Tensor distances(const Tensor& input, std::int64_t first, std::int64_t rows, const Tensor& mean) {
  return wide_rows(input, first, rows, mean.scalar_type()) - along_channels(mean, input);
}

Moments moments_of_blocks(const Tensor& input) {
  Moments result(static_cast<std::size_t>(input.size(1)));
  const auto dimensions = reduced_dimensions(input);
  for_each_block(input, [&](std::int64_t first, std::int64_t rows) {
    const Tensor block = wide_rows(input, first, rows, torch::kFloat64);
    const Tensor mean = block.mean(dimensions).cpu();
    const Tensor squares =
        (block - along_channels(mean.to(input.device()), input)).square_().sum(dimensions).cpu();
    const auto count = static_cast<double>(block.numel() / input.size(1));
    result.merge(count, values_of(mean), values_of(squares));
  });
  return result;
}

}  // namespace

std::span<const double> values_of(const Tensor& float64_on_cpu) {
  return {float64_on_cpu.const_data_ptr<double>(), count_of(float64_on_cpu)};
}

Moments moments_of(const Tensor& input) {
  return has_planes(input) ? moments_of_planes(input) : moments_of_blocks(input);
}

Tensor moments_row(const Tensor& input, double flag) {
  const auto type = input.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
  const std::int64_t channels = input.size(1);
  const auto count = static_cast<double>(input.numel() / channels);
  const Tensor row = torch::zeros({2 * channels + 2}, input.options().dtype(type));
  if (input.numel() > 0) {
    const auto [variance, mean] =
        torch::var_mean(input.to(type), reduced_dimensions(input), /*correction=*/0);
    row.narrow(0, 0, channels).copy_(mean);
    row.narrow(0, channels, channels).copy_(variance.mul_(count));
  }
  row.narrow(0, 2 * channels, 1).fill_(count);
  row.narrow(0, 2 * channels + 1, 1).fill_(flag);
  return row;
}

CombinedMoments combined_moments(const Tensor& rows) {
  const std::int64_t channels = rows.size(1) / 2 - 1;
  const Tensor means = rows.narrow(1, 0, channels), squares = rows.narrow(1, channels, channels);
  const Tensor counts = rows.narrow(1, 2 * channels, 1);
  const Tensor count = counts.sum();
  const Tensor mean = (means * counts).sum(0) / count;
  return {mean, (squares + (means - mean).square_().mul_(counts)).sum(0), count};
}

Tensor normalized(const Tensor& input, const Tensor& mean, const Tensor& scale,
                  const Tensor& bias) {
  Tensor output = torch::empty_like(input);
  if (goes_by_planes(input, mean)) {
    const auto means = values_of(mean), scales = values_of(scale), biases = values_of(bias);
    with_type(input, [&]<class T>(T) {
      const T* x = input.const_data_ptr<T>();
      T* y = output.mutable_data_ptr<T>();
      const Planes planes(input);
      planes.for_each([&](std::int64_t channel, std::int64_t offset) {
        const auto c = static_cast<std::size_t>(channel);
        normalize_plane(x + offset, y + offset, planes.count(), means[c], scales[c], biases[c]);
      });
    });
    return output;
  }
  for_each_block(input, [&](std::int64_t first, std::int64_t rows) {
    Tensor block = distances(input, first, rows, mean);
    block.mul_(along_channels(scale, input)).add_(along_channels(bias, input));
    output.narrow(0, first, rows).copy_(block);
  });
  return output;
}

Tensor gradient_sums(const Tensor& gradient, const Tensor& input, const Tensor& mean) {
  Tensor sums = torch::zeros({2, input.size(1)}, mean.options());
  if (goes_by_planes(input, mean)) {
    const Tensor plain = gradient.contiguous();
    const auto means = values_of(mean);
    double* of_gradient = sums.mutable_data_ptr<double>();
    double* of_product = of_gradient + input.size(1);
    with_type(input, [&]<class T>(T) {
      const T* x = input.const_data_ptr<T>();
      const T* g = plain.const_data_ptr<T>();
      const Planes planes(input);
      planes.for_each([&](std::int64_t c, std::int64_t offset) {
        add_gradient_sums(g + offset, x + offset, planes.count(),
                          means[static_cast<std::size_t>(c)], of_gradient[c], of_product[c]);
      });
    });
    return sums;
  }
  const auto dimensions = reduced_dimensions(input);
  for_each_block(input, [&](std::int64_t first, std::int64_t rows) {
    const Tensor g = wide_rows(gradient, first, rows, mean.scalar_type());
    sums[0] += g.sum(dimensions);
    sums[1] += (g * distances(input, first, rows, mean)).sum(dimensions);
  });
  return sums;
}

Tensor input_gradient(const Tensor& gradient, const Tensor& input, const Tensor& mean,
                      const Tensor& scale, const Tensor& constant, const Tensor& slope) {
  Tensor result = torch::empty_like(input);
  if (goes_by_planes(input, mean)) {
    const Tensor plain = gradient.contiguous();
    const auto means = values_of(mean), scales = values_of(scale), constants = values_of(constant),
               slopes = values_of(slope);
    with_type(input, [&]<class T>(T) {
      const T* x = input.const_data_ptr<T>();
      const T* g = plain.const_data_ptr<T>();
      T* r = result.mutable_data_ptr<T>();
      const Planes planes(input);
      planes.for_each([&](std::int64_t channel, std::int64_t offset) {
        const auto c = static_cast<std::size_t>(channel);
        input_gradient_plane(g + offset, x + offset, r + offset, planes.count(), means[c],
                             scales[c], constants[c], slopes[c]);
      });
    });
    return result;
  }
  for_each_block(input, [&](std::int64_t first, std::int64_t rows) {
    Tensor block = distances(input, first, rows, mean);
    block.mul_(along_channels(slope, input)).add_(along_channels(constant, input));
    torch::sub_out(block, wide_rows(gradient, first, rows, mean.scalar_type()), block);
    result.narrow(0, first, rows).copy_(block.mul_(along_channels(scale, input)));
  });
  return result;
}

}  // namespace ddprun
