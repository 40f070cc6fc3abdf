#include "frontend/onnx/vector_pieces.h"

#include <algorithm>

namespace shardc::onnx_import {
namespace {

constexpr int64_t kLeastRun = 4;
// Of one element: what so many have, as ones, tells nothing.
constexpr size_t kMostPlaces = 4096;

}  // namespace

void VectorElements::Add(const std::string& name, const Squeezed& vector) {
  HostTensor data = vector.ReadAll();
  for (int64_t i = 0; i < data.num_elements(); ++i) {
    if (data.AsDouble(i) != 0)
      places_[std::string(Element(data, i))].push_back({vectors_.size(), i});
  }
  vectors_.emplace_back(name, std::move(data));
}

std::vector<VectorPiece> VectorElements::PiecesOf(const Squeezed& vector) const {
  const HostTensor made = vector.ReadAll();
  const int64_t n = made.num_elements();
  std::vector<VectorPiece> pieces;
  for (int64_t at = 0; at < n;) {
    int64_t zeros = 0;
    while (at + zeros < n && made.AsDouble(at + zeros) == 0) ++zeros;
    if (zeros > 0) {
      pieces.push_back({"", 0, zeros});
      at += zeros;
      continue;
    }
    const auto found = places_.find(std::string(Element(made, at)));
    if (found == places_.end() || found->second.size() > kMostPlaces) return {};
    const Place* longest = nullptr;
    int64_t length = 0;
    bool unclear = false;
    for (const Place& place : found->second) {
      const int64_t more = Agreeing(made, at, place);
      unclear = more == length || (more < length && unclear);
      if (more <= length) continue;
      longest = &place;
      length = more;
    }
    const auto& [name, data] = vectors_[longest->vector];
    if (unclear || (length < kLeastRun && length < data.num_elements())) return {};
    pieces.push_back({name, longest->at, longest->at + length});
    at += length;
  }
  return pieces;
}

std::string_view VectorElements::Element(const HostTensor& t, int64_t i) const {
  const int64_t bytes = DTypeSize(type_);
  return {reinterpret_cast<const char*>(t.raw()) + i * bytes, static_cast<size_t>(bytes)};
}

// How many elements from there on are those from that place on.
int64_t VectorElements::Agreeing(const HostTensor& made, int64_t at, const Place& place) const {
  const HostTensor& of = vectors_[place.vector].second;
  const int64_t most = std::min(made.num_elements() - at, of.num_elements() - place.at);
  int64_t n = 0;
  while (n < most && Element(made, at + n) == Element(of, place.at + n)) ++n;
  return n;
}

}  // namespace shardc::onnx_import
