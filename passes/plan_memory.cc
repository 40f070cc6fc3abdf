#include "passes/plan_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "ir/program.h"

namespace shardc {
namespace {

// What a request takes of the arena.
int64_t RoomOf(const MemoryRequest& r) {
  const int64_t blocks = (r.bytes + kBufferAlignment - 1) / kBufferAlignment;
  return std::max<int64_t>(blocks, 1) * kBufferAlignment;
}

// The free stretches of an arena that grows at its end.
class FreeList {
 public:
  // Best fit: the smallest hole that is large enough; first fit: the lowest. At the end when there
  // is none.
  int64_t Take(int64_t bytes, bool best_fit) {
    auto hole = holes_.end();
    if (best_fit) {
      if (auto it = by_size_.lower_bound({bytes, 0}); it != by_size_.end())
        hole = holes_.find(it->second);
    } else {
      hole = std::find_if(holes_.begin(), holes_.end(), [&](auto& h) { return h.second >= bytes; });
    }
    if (hole != holes_.end()) {
      auto [offset, size] = *hole;
      Remove(hole);
      if (size > bytes) Insert(offset + bytes, size - bytes);
      return offset;
    }
    // The last hole, when it touches the end, is extended.
    int64_t offset = end_;
    if (!holes_.empty()) {
      auto last = std::prev(holes_.end());
      if (last->first + last->second == end_) {
        offset = last->first;
        Remove(last);
      }
    }
    end_ = offset + bytes;
    return offset;
  }

  void Give(int64_t offset, int64_t bytes) {
    auto next = holes_.lower_bound(offset);
    if (next != holes_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = Remove(next);
    }
    if (next != holes_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        bytes += before->second;
        Remove(before);
      }
    }
    Insert(offset, bytes);
  }

  int64_t end() const { return end_; }

 private:
  using Holes = std::map<int64_t, int64_t>;
  void Insert(int64_t offset, int64_t bytes) {
    holes_[offset] = bytes;
    by_size_.insert({bytes, offset});
  }
  Holes::iterator Remove(Holes::iterator hole) {
    by_size_.erase({hole->second, hole->first});
    return holes_.erase(hole);
  }

  Holes holes_;
  std::set<std::pair<int64_t, int64_t>> by_size_;
  int64_t end_ = 0;
};

template <typename Before>
std::vector<int> Sorted(const std::vector<MemoryRequest>& requests, const Before& before) {
  std::vector<int> order(requests.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return before(requests[a], requests[b]); });
  return order;
}

// Requests in the order they begin; at one instruction the largest first.
std::vector<int> ByStart(const std::vector<MemoryRequest>& requests) {
  return Sorted(requests, [](const MemoryRequest& a, const MemoryRequest& b) {
    return a.first != b.first ? a.first < b.first : a.bytes > b.bytes;
  });
}

struct Policy {
  bool best_fit;
  bool lasting_first;  // what lives to the end gets a region of its own at the bottom
};

int64_t Place(std::vector<MemoryRequest>& requests, const std::vector<int>& order, Policy policy) {
  int end_of_time = 0;
  for (const MemoryRequest& r : requests) end_of_time = std::max(end_of_time, r.last);
  int64_t base = 0;
  FreeList free;
  std::set<std::pair<int, int>> live;  // (last, request)
  for (int i : order) {
    MemoryRequest& r = requests[i];
    int64_t bytes = RoomOf(r);
    if (policy.lasting_first && r.last == end_of_time) {
      r.offset = base;
      base += bytes;
      continue;
    }
    while (!live.empty() && live.begin()->first < r.first) {
      const MemoryRequest& gone = requests[live.begin()->second];
      free.Give(gone.offset, RoomOf(gone));
      live.erase(live.begin());
    }
    r.offset = free.Take(bytes, policy.best_fit);
    live.insert({r.last, i});
  }
  if (base > 0) {
    for (MemoryRequest& r : requests) {
      if (r.last != end_of_time) r.offset += base;
    }
  }
  return base + free.end();
}

// The largest first, each as low as those placed before allow: what lives at the same time is in
// its way, wherever in time it begins. Quadratic.
int64_t PlaceLargestFirst(std::vector<MemoryRequest>& requests) {
  const auto larger = [](const MemoryRequest& a, const MemoryRequest& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.last - a.first > b.last - b.first;
  };
  struct Placed {
    int64_t begin, end;
    int first, last;
  };
  std::vector<Placed> placed;  // by begin
  placed.reserve(requests.size());
  int64_t total = 0;
  for (int i : Sorted(requests, larger)) {
    MemoryRequest& r = requests[i];
    int64_t bytes = RoomOf(r), at = 0;
    for (const Placed& p : placed) {
      if (p.begin >= at + bytes) break;
      if (p.first <= r.last && r.first <= p.last) at = std::max(at, p.end);
    }
    r.offset = at;
    total = std::max(total, at + bytes);
    auto after = std::upper_bound(placed.begin(), placed.end(), at,
                                  [](int64_t offset, const Placed& p) { return offset < p.begin; });
    placed.insert(after, {at, at + bytes, r.first, r.last});
  }
  return total;
}

// What lives at the fullest moment: no placement takes less.
int64_t MostAtOnce(const std::vector<MemoryRequest>& requests) {
  std::vector<std::pair<int, int64_t>> changes;  // at an instruction, by so many bytes
  for (const MemoryRequest& r : requests) {
    changes.push_back({r.first, RoomOf(r)});
    changes.push_back({r.last + 1, -RoomOf(r)});
  }
  std::sort(changes.begin(), changes.end());  // what ends before what begins
  int64_t now = 0, most = 0;
  for (const auto& [at, bytes] : changes) most = std::max(most, now += bytes);
  return most;
}

}  // namespace

int64_t PlanMemory(std::vector<MemoryRequest>& requests) {
  std::vector<int> order = ByStart(requests);
  std::vector<MemoryRequest> best;
  const int64_t least = MostAtOnce(requests);
  int64_t best_bytes = -1;
  auto attempt = [&](const auto& place) {
    if (best_bytes == least) return;
    std::vector<MemoryRequest> tried = requests;
    int64_t bytes = place(tried);
    if (best_bytes >= 0 && bytes >= best_bytes) return;
    best = std::move(tried);
    best_bytes = bytes;
  };
  constexpr size_t kMany = 4000, kVeryMany = 20000;
  for (Policy policy :
       {Policy{true, false}, Policy{false, false}, Policy{true, true}, Policy{false, true}}) {
    // First fit walks the holes: only where that stays cheap.
    if (!policy.best_fit && requests.size() > kMany) continue;
    attempt([&](auto& tried) { return Place(tried, order, policy); });
  }
  // Quadratic: of many only where there is more than a hundredth to be had.
  const bool far = best_bytes - least > least / 100;
  if (requests.size() <= (far ? kVeryMany : kMany)) attempt(PlaceLargestFirst);
  requests = std::move(best);
  return std::max<int64_t>(best_bytes, 0);
}

}  // namespace shardc
