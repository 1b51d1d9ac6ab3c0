#include "worker_lib/nn/core/channel_loops.h"

namespace ddprun {
namespace {

constexpr std::size_t kLanes = 8;

// Adds the sums of two terms of each element. term(i, a, b) adds those of element i.
template <class Term>
void add_in_lanes(std::size_t count, double& sum_a, double& sum_b, Term term) {
  double a[kLanes] = {}, b[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) term(i + lane, a[lane], b[lane]);
  for (std::size_t lane = 0; i + lane < count; ++lane) term(i + lane, a[lane], b[lane]);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    sum_a += a[lane];
    sum_b += b[lane];
  }
}

}  // namespace

template <class T>
void add_moments(const T* x, std::size_t count, double shift, double& sum, double& squares) {
  add_in_lanes(count, sum, squares, [=](std::size_t i, double& a, double& b) {
    const double distance = static_cast<double>(x[i]) - shift;
    a += distance;
    b += distance * distance;
  });
}

template <class T>
void normalize_plane(const T* x, T* y, std::size_t count, double mean, double scale, double bias) {
  for (std::size_t i = 0; i < count; ++i)
    y[i] = static_cast<T>((static_cast<double>(x[i]) - mean) * scale + bias);
}

template <class T>
void add_gradient_sums(const T* g, const T* x, std::size_t count, double mean, double& sum,
                       double& product) {
  add_in_lanes(count, sum, product, [=](std::size_t i, double& a, double& b) {
    const auto gradient = static_cast<double>(g[i]);
    a += gradient;
    b += gradient * (static_cast<double>(x[i]) - mean);
  });
}

template <class T>
void input_gradient_plane(const T* g, const T* x, T* result, std::size_t count, double mean,
                          double scale, double constant, double slope) {
  for (std::size_t i = 0; i < count; ++i)
    result[i] = static_cast<T>(
        (static_cast<double>(g[i]) - constant - (static_cast<double>(x[i]) - mean) * slope) *
        scale);
}

template void add_moments(const float*, std::size_t, double, double&, double&);
template void add_moments(const double*, std::size_t, double, double&, double&);
template void normalize_plane(const float*, float*, std::size_t, double, double, double);
template void normalize_plane(const double*, double*, std::size_t, double, double, double);
template void add_gradient_sums(const float*, const float*, std::size_t, double, double&, double&);
template void add_gradient_sums(const double*, const double*, std::size_t, double, double&,
                                double&);
template void input_gradient_plane(const float*, const float*, float*, std::size_t, double, double,
                                   double, double);
template void input_gradient_plane(const double*, const double*, double*, std::size_t, double,
                                   double, double, double);

}  // namespace ddprun
