// What every Carrier must do, as cases that the test of each one runs.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/carrier.h"
#include "tests/runtime/collective_values.h"

namespace shardc::testing {

// One call with two pairs of buffers: what every rank gives, and must get. A transfer has two
// ranks; the others have no part in it.
struct CarrierCase {
  Collective collective;
  DType dtype = DType::kF32;
  int64_t count = 0;  // of Buffers
  bool in_place = false;
  std::vector<std::array<Bytes, 2>> send, want;  // by rank

  bool IsTransfer() const { return collective.kind == CollectiveKind::kSendRecv; }
  bool HasPart(int rank) const {
    return !IsTransfer() || rank == collective.from || rank == collective.to;
  }
  // The pointers that the rank's member has.
  Buffers BuffersOf(int rank, const void* from, void* to) const {
    if (!IsTransfer()) return {from, to, count, dtype};
    return rank == collective.from ? Buffers{from, nullptr, count, dtype}
                                   : Buffers{nullptr, to, count, dtype};
  }
  std::string Name() const {
    const std::string ends =
        IsTransfer() ? StrCat(" ", collective.from, " to ", collective.to) : "";
    return StrCat(CollectiveKindName(collective.kind), ends, collective.max ? " max, " : ", ",
                  in_place ? "in place, " : "",
                  CaseName(static_cast<int>(send.size()), dtype, count));
  }
};

inline Bytes WantedOf(CollectiveKind kind, DType dtype, ReduceOp op, int64_t bytes, size_t rank,
                      const std::vector<Bytes>& send) {
  const auto at = static_cast<int64_t>(rank) * bytes;
  if (kind == CollectiveKind::kAllReduce) return ReduceSerially(dtype, op, send);
  if (kind == CollectiveKind::kReduceScatter)
    return Slice(ReduceSerially(dtype, op, send), at, bytes);
  Bytes out;
  for (const Bytes& from : send) {
    Bytes part = kind == CollectiveKind::kAllGather ? from : Slice(from, at, bytes);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

// Between neighbours and between the ends, both ways.
template <typename Visit>
void ForEachTransfer(int ranks, const std::vector<DType>& dtypes, int64_t most,
                     const Visit& visit) {
  std::set<std::pair<int, int>> pairs;
  for (int r = 0; r < ranks && ranks > 1; ++r) pairs.insert({r, (r + 1) % ranks});
  if (ranks > 1) pairs.insert({0, ranks - 1});
  for (auto [from, to] : pairs) {
    for (DType dtype : dtypes) {
      for (int64_t count : {int64_t{0}, int64_t{1}, most}) {
        CarrierCase c;
        c.collective.kind = CollectiveKind::kSendRecv;
        c.collective.axes = {0};
        c.collective.dtype = c.dtype = dtype;
        c.collective.from = from;
        c.collective.to = to;
        c.count = count;
        c.send.resize(static_cast<size_t>(ranks));
        c.want = c.send;
        for (uint64_t b = 0; b < 2; ++b) {
          c.send[from][b] = RandomRanks(dtype, count, 10 + b, ranks)[from];
          c.want[to][b] = c.send[from][b];
        }
        visit(c);
      }
    }
  }
}

// Calls visit(case) for every kind, type and reduction, and counts from none to `most`.
template <typename Visit>
void ForEachCarrierCase(int ranks, const std::vector<DType>& dtypes, int64_t most,
                        const Visit& visit) {
  const std::pair<CollectiveKind, bool> kinds[] = {
      {CollectiveKind::kAllReduce, false},     {CollectiveKind::kAllReduce, true},
      {CollectiveKind::kReduceScatter, false}, {CollectiveKind::kReduceScatter, true},
      {CollectiveKind::kAllGather, false},     {CollectiveKind::kAllToAll, false}};
  for (auto [kind, max] : kinds) {
    const bool reduces =
        kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
    const bool splits = kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
    for (DType dtype : dtypes) {
      if (reduces && !max && dtype == DType::kBool) continue;
      for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{61}, most}) {
        for (bool in_place : {false, true}) {
          if (in_place && kind != CollectiveKind::kAllReduce) continue;
          CarrierCase c;
          c.collective.kind = kind;
          c.collective.axes = {0};
          c.collective.max = max;
          c.collective.dtype = dtype;
          c.dtype = dtype;
          c.count = count;
          c.in_place = in_place;
          const auto n = static_cast<size_t>(ranks);
          c.send.resize(n);
          c.want.resize(n);
          for (uint64_t b = 0; b < 2; ++b) {
            auto send = RandomRanks(dtype, splits ? count * ranks : count, 10 + b, ranks);
            for (size_t r = 0; r < n; ++r) {
              c.want[r][b] = WantedOf(kind, dtype, max ? ReduceOp::kMax : ReduceOp::kSum,
                                      count * DTypeSize(dtype), r, send);
              c.send[r][b] = send[r];
            }
          }
          visit(c);
        }
      }
    }
  }
  ForEachTransfer(ranks, dtypes, most, visit);
}

// "" or the first element that is not what it must be; sums in another order than by rank, or
// rounded on the way, are within a `rounding` of each of the terms.
inline std::string Wrong(const CarrierCase& c, int rank, size_t buffer, const Bytes& got,
                         double rounding) {
  const Bytes& want = c.want[rank][buffer];
  if (got.size() != want.size()) return c.Name() + ": another size";
  return VisitDType(c.dtype, [&](auto draw, auto load, auto) -> std::string {
    using T = decltype(draw(0));
    for (size_t at = 0; at < got.size(); at += sizeof(T)) {
      T g, w;
      std::memcpy(&g, &got[at], sizeof(T));
      std::memcpy(&w, &want[at], sizeof(T));
      bool same = std::memcmp(&g, &w, sizeof(T)) == 0;
      if constexpr (!std::is_integral_v<decltype(load(w))>) {
        // Terms are below 4.
        double most = 4.0 * static_cast<double>(c.send.size());
        same = same || std::abs(static_cast<double>(load(g) - load(w))) <= rounding * most;
      }
      if (!same) return StrCat(c.Name(), ": element ", at / sizeof(T), " on rank ", rank);
    }
    return "";
  });
}

// Runs the cases on ranks that share a device. Uploads, the call and downloads are only ordered by
// the ranks' streams.
inline void CheckSharedDevice(cuda::Device& device, int ranks, int64_t most) {
  auto carrier = cuda::MakeSharedDevice(device);
  std::vector<cuda::Stream> streams;
  for (int r = 0; r < ranks; ++r) streams.push_back(device.MakeStream(false));
  const std::vector<DType> dtypes(kAllDTypes.begin(), kAllDTypes.end());
  ForEachCarrierCase(ranks, dtypes, most, [&](const CarrierCase& c) {
    std::vector<std::byte*> memory;
    auto allocate = [&](size_t bytes) {
      memory.push_back(device.Allocate(static_cast<int64_t>(bytes) + 1, "a test"));
      return memory.back();
    };
    std::vector<int> taking_part;
    for (int r = 0; r < ranks; ++r) {
      if (!c.IsTransfer()) taking_part.push_back(r);
    }
    if (c.IsTransfer()) taking_part = {c.collective.from, c.collective.to};
    std::vector<cuda::Member> members;
    std::vector<std::array<Bytes, 2>> got(c.send.size());
    std::vector<std::array<std::byte*, 2>> result(c.send.size());
    for (int r : taking_part) {
      members.push_back({r, streams[r], {}});
      for (size_t b = 0; b < 2; ++b) {
        std::byte* send = allocate(c.send[r][b].size());
        std::byte* recv = result[r][b] = c.in_place ? send : allocate(c.want[r][b].size());
        const auto bytes = static_cast<int64_t>(c.send[r][b].size());
        if (bytes > 0) device.CopyIn(send, c.send[r][b].data(), bytes, streams[r]);
        members.back().buffers.push_back(c.BuffersOf(r, send, recv));
        got[r][b].resize(c.want[r][b].size());
      }
    }
    carrier->Enqueue(c.collective, members);
    for (int r : taking_part) {
      for (size_t b = 0; b < 2; ++b) {
        const auto bytes = static_cast<int64_t>(got[r][b].size());
        if (bytes > 0) device.CopyOut(got[r][b].data(), result[r][b], bytes, streams[r]);
      }
    }
    for (int r = 0; r < ranks; ++r) {
      device.Synchronize(streams[r]);
      for (size_t b = 0; b < 2; ++b) EXPECT_EQ(Wrong(c, r, b, got[r][b], 0), "");
    }
    for (std::byte* p : memory) device.Free(p);
  });
  for (cuda::Stream s : streams) device.DestroyStream(s);
}

}  // namespace shardc::testing
