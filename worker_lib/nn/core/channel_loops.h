// The inner loops of batch normalization over one plane: consecutive values of one channel.
//
// All arithmetic is float64; results are rounded to T (float or double) once. Sums run in a
// fixed number of lanes, for which compilers can use vector registers without changing any bit.
//
// Pure functions; any thread.
#pragma once

#include <cstddef>

namespace ddprun {

// Adds the sums of (x - shift) and of (x - shift)^2.
template <class T>
void add_moments(const T* x, std::size_t count, double shift, double& sum, double& squares);

// Computes y = (x - mean) * scale + bias.
template <class T>
void normalize_plane(const T* x, T* y, std::size_t count, double mean, double scale, double bias);

// Adds the sums of g and of g * (x - mean).
template <class T>
void add_gradient_sums(const T* g, const T* x, std::size_t count, double mean, double& sum,
                       double& product);

// Computes result = (g - constant - (x - mean) * slope) * scale.
template <class T>
void input_gradient_plane(const T* g, const T* x, T* result, std::size_t count, double mean,
                          double scale, double constant, double slope);

}  // namespace ddprun
