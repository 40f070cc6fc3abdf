#include "frontend/onnx/affine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "frontend/onnx/read_pieces.h"
#include "ir/dtype.h"

namespace shardc::onnx_import {
namespace {

constexpr double kMostError = 2e-6;     // of the largest element: f32 was rounded twice
constexpr double kLeastSpread = 1e-3;   // of it, too: what is told apart from that error
constexpr double kUnlike = 1e-2;        // of it, too: no rounding
constexpr int64_t kSample = 256;        // elements
constexpr double kMostOfNumber = 2e-7;  // of a number that was found: f32 was rounded once

double WithFewDigits(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", v);
  return std::strtod(text, nullptr);
}

bool HasFewDigits(double v) {
  return std::abs(WithFewDigits(v) - v) <= kMostOfNumber * std::abs(v);
}

// To a number as a program has them, where it is near one.
double Rounded(double v) { return HasFewDigits(v) ? WithFewDigits(v) : v; }

struct Sums {
  Sums(const HostTensor& made, const HostTensor& of)
      : count(static_cast<double>(of.num_elements())) {
    for (int64_t i = 0; i < of.num_elements(); ++i) {
      const double m = made.AsDouble(i), o = of.AsDouble(i);
      of_mean += o / count;
      made_mean += m / count;
      largest = std::max(largest, std::abs(m));
      least = std::min(least, m);
      most = std::max(most, m);
      products += m * o;
      squares += o * o;
    }
    for (int64_t i = 0; i < of.num_elements(); ++i) {
      const double m = made.AsDouble(i) - made_mean, o = of.AsDouble(i) - of_mean;
      centred_products += m * o;
      centred_squares += o * o;
    }
  }

  double count, of_mean = 0, made_mean = 0;
  double largest = 0, least = HUGE_VAL, most = -HUGE_VAL;
  double products = 0, squares = 0;  // around 0
  double centred_products = 0, centred_squares = 0;
};

// The least squares' line of a piece.
std::optional<Affine> Fit(const HostTensor& made, const HostTensor& of, bool times_only) {
  const Sums s(made, of);
  if (!std::isfinite(s.squares) || !std::isfinite(s.products) || s.squares == 0 || s.largest == 0)
    return std::nullopt;
  const Affine through_zero{Rounded(s.products / s.squares), 0};
  if (times_only) return through_zero;
  if (s.centred_squares == 0 || s.most - s.least < kLeastSpread * s.largest) return std::nullopt;
  const double times = Rounded(s.centred_products / s.centred_squares);
  const double plus = s.made_mean - times * s.of_mean;
  return std::abs(plus) <= kMostError * s.largest ? through_zero : Affine{times, Rounded(plus)};
}

bool Agree(const HostTensor& made, const HostTensor& of, const Affine& affine, double largest,
           double most_error = kMostError) {
  for (int64_t i = 0; i < of.num_elements(); ++i) {
    const double value = affine.Of(of.AsDouble(i));
    const double error = std::abs(made.AsDouble(i) - value);
    if (!(error <= most_error * std::max(largest, std::abs(value)))) return false;
  }
  return true;
}

double Largest(const HostTensor& t) {
  double largest = 0;
  for (int64_t i = 0; i < t.num_elements(); ++i)
    largest = std::max(largest, std::abs(t.AsDouble(i)));
  return largest;
}

// Of the first elements in order, a few.
Shape SampleOf(const Shape& shape) {
  Shape size(shape.size(), 1);
  int64_t left = kSample;
  for (size_t d = shape.size(); d-- > 0; left /= size[d]) {
    size[d] = std::min(shape[d], left);
    if (size[d] < shape[d]) break;
  }
  return size;
}

HostTensor First(const HostTensor& t, int64_t count) {
  HostTensor first(t.dtype(), {count});
  std::copy_n(t.raw(), first.bytes(), first.raw());
  return first;
}

// Most pairs of tensors have nothing to do with each other, which a few elements show.
bool MayBeLike(const Squeezed& made, const Squeezed& of, bool turned, bool times_only) {
  const auto head = [](const Squeezed& t, const Shape& size) {
    return t.Read(Shape(size.size()), size);
  };
  HostTensor m = turned ? Turned(head(made, Turned(SampleOf(Turned(made.shape())))))
                        : head(made, SampleOf(made.shape()));
  HostTensor o = head(of, SampleOf(of.shape()));
  const int64_t count = std::min(m.num_elements(), o.num_elements());
  m = First(m, count);
  o = First(o, count);
  const auto affine = Fit(m, o, times_only);
  return !affine || Agree(m, o, *affine, Largest(m), kUnlike);
}

}  // namespace

bool IsOfProgram(const Affine& affine) {
  return std::ranges::all_of(std::array{affine.times, affine.plus}, [](double v) {
    return v == 0 || HasFewDigits(v) || HasFewDigits(1 / v) || HasFewDigits(v * v) ||
           HasFewDigits(1 / (v * v));
  });
}

std::optional<Affine> AffineOf(const Squeezed& made, const Squeezed& of, bool turned,
                               bool times_only) {
  if (IsHalf(made.type()) || NumElements(made.shape()) != NumElements(of.shape())) {
    return std::nullopt;
  }
  const bool same_dims = made.shape() == (turned ? Turned(of.shape()) : of.shape());
  if (!MayBeLike(made, of, turned, times_only)) return std::nullopt;
  std::optional<Affine> affine;
  double largest = 0;
  const auto agree = [&](const HostTensor& m, const HostTensor& o) {
    if (!affine) affine = Fit(m, o, times_only), largest = Largest(m);
    return affine && Agree(m, o, *affine, largest);
  };
  const bool agrees =
      same_dims
          ? HoldsOfPieces(made.shape(),
                          [&](const Shape& offset, const Shape& size) {
                            return agree(made.Read(offset, size),
                                         turned ? Turned(of.Read(Turned(offset), Turned(size)))
                                                : of.Read(offset, size));
                          })
          : agree(turned ? Turned(made.ReadAll()) : made.ReadAll(), of.ReadAll());
  // Only rounded otherwise: what computed it is not known.
  const bool itself = same_dims && affine == Affine();
  return agrees && !itself ? affine : std::nullopt;
}

}  // namespace shardc::onnx_import
