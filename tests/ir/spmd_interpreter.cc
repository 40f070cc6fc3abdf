#include "tests/ir/spmd_interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "ir/op_def.h"
#include "ir/shard_copy.h"

namespace shardc::testing {
namespace {

constexpr double kGarbageInt = 700001;  // outside every range of ids and labels

[[noreturn]] void Fail(const std::string& what) { throw std::runtime_error(what); }

void SetGarbage(HostTensor& t, int64_t i) {
  if (t.dtype() == DType::kBool) {
    std::memset(t.raw() + i, 0x5a, 1);
  } else {
    t.SetDouble(i, IsFloat(t.dtype()) ? std::numeric_limits<double>::quiet_NaN() : kGarbageInt);
  }
}

// For each element of the rank's shard whether it is padding.
std::vector<bool> PaddingMask(const TensorType& type, const Mesh& mesh, int64_t rank) {
  Shape local = LocalShape(type, mesh);
  std::vector<bool> padding = {false};
  for (int d = 0; d < type.rank(); ++d) {
    std::vector<bool> dim(local[d], true), next;
    for (const Run& r : LocalRuns(type.shape[d], type.sharding.dims[d], mesh, rank)) {
      std::fill_n(dim.begin() + r.local, r.size, false);
    }
    for (bool outer : padding) {
      for (bool inner : dim) next.push_back(outer || inner);
    }
    padding = std::move(next);
  }
  return padding;
}

bool IsZero(const HostTensor& t, int64_t i) {
  const std::byte* at = t.raw() + i * DTypeSize(t.dtype());
  return t.dtype() == DType::kBool ? at[0] == std::byte{0} : t.AsDouble(i) == 0;
}

bool PaddingIsZero(const Shards& shards, const TensorType& type, const Mesh& mesh) {
  if (!HasPadding(type, mesh)) return true;
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    std::vector<bool> padding = PaddingMask(type, mesh, static_cast<int64_t>(rank));
    for (size_t i = 0; i < padding.size(); ++i) {
      if (padding[i] && !IsZero(shards[rank], static_cast<int64_t>(i))) return false;
    }
  }
  return true;
}

void Poison(Shards& shards, const TensorType& type, const Mesh& mesh) {
  if (!HasPadding(type, mesh)) return;
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    std::vector<bool> padding = PaddingMask(type, mesh, static_cast<int64_t>(rank));
    for (size_t i = 0; i < padding.size(); ++i) {
      if (padding[i]) SetGarbage(shards[rank], static_cast<int64_t>(i));
    }
  }
}

HostTensor Garbage(DType dtype, Shape shape) {
  HostTensor t(dtype, std::move(shape));
  for (int64_t i = 0; i < t.num_elements(); ++i) SetGarbage(t, i);
  return t;
}

bool SameBytes(const HostTensor& a, const HostTensor& b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0);
}

bool Cuts(const TensorType& type, int axis) {
  return std::any_of(type.sharding.dims.begin(), type.sharding.dims.end(),
                     [&](const DimSharding& d) { return d.axes.contains(axis); });
}

// Whether the two ranks have the same coordinate on every axis for which fn(axis).
template <typename Fn>
bool Agree(const Mesh& mesh, int64_t a, int64_t b, Fn fn) {
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (fn(axis) && mesh.Coordinate(a, axis) != mesh.Coordinate(b, axis)) return false;
  }
  return true;
}

// The whole tensor as seen by a rank: from the ranks that agree with it on all axes but those that
// cut.
HostTensor Gather(const Shards& shards, const TensorType& type, const Mesh& mesh, int64_t rank) {
  HostTensor whole = Garbage(type.dtype, type.shape);
  for (int64_t r = 0; r < mesh.num_ranks(); ++r) {
    if (!Agree(mesh, r, rank, [&](int axis) { return !Cuts(type, axis); })) continue;
    LocalToGlobal(shards[r].raw(), type, mesh, r, whole.raw());
  }
  return whole;
}

HostTensor Combine(const HostTensor& a, const HostTensor& b, bool max) {
  HostTensor out = a;
  for (int64_t i = 0; i < out.num_elements(); ++i) {
    double x = a.AsDouble(i), y = b.AsDouble(i);
    out.SetDouble(i, max ? (std::isnan(x) || x > y ? x : y) : x + y);
  }
  return out;
}

// The whole tensor as seen by a rank, with the partial axes that `left` keeps partial still so.
HostTensor Reduce(const Shards& shards, const TensorType& type, const Mesh& mesh, int64_t rank,
                  const Sharding& left) {
  auto reduced = [&](int axis) {
    const Sharding& s = type.sharding;
    return (s.partial_sum.contains(axis) && !left.partial_sum.contains(axis)) ||
           (s.partial_max.contains(axis) && !left.partial_max.contains(axis));
  };
  HostTensor total;
  bool first = true;
  for (int64_t r = 0; r < mesh.num_ranks(); ++r) {
    if (!Agree(mesh, r, rank, [&](int axis) { return !reduced(axis); })) continue;
    HostTensor term = Gather(shards, type, mesh, r);
    total = first ? std::move(term)
                  : Combine(total, term, left.partial_max != type.sharding.partial_max);
    first = false;
  }
  return total;
}

class Machine {
 public:
  Machine(const Graph& graph, const std::map<const Value*, HostTensor>& given)
      : graph_(graph), mesh_(graph.mesh) {
    for (const auto& input : graph.inputs()) {
      values_[input.get()] = Distribute(given.at(input.get()), input->type, mesh_);
    }
  }

  std::vector<HostTensor> Run() {
    for (const auto& op : graph_.ops()) {
      if (op->def->communicates) {
        Communicate(*op);
      } else {
        Compute(*op);
      }
      SettlePadding(*op);
    }
    std::vector<HostTensor> outputs;
    for (const Output& o : graph_.outputs) {
      outputs.push_back(Assemble(values_.at(o.value), o.value->type, mesh_));
    }
    return outputs;
  }

 private:
  void Compute(const Op& op) {
    for (const Value* r : op.results) {
      values_[r].assign(static_cast<size_t>(mesh_.num_ranks()),
                        Garbage(r->type.dtype, LocalShape(r->type, mesh_)));
    }
    for (int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
      auto view = [&](const Value* v) {
        HostTensor& t = values_.at(v)[rank];
        return TensorView{t.raw(), t.dtype(), t.shape(), &v->type};
      };
      std::vector<TensorView> in, out;
      for (const Value* v : op.operands) in.push_back(view(v));
      for (const Value* v : op.results) out.push_back(view(v));
      KernelCall call;
      call.attrs = &op.attrs;
      call.in = in;
      call.out = out;
      call.mesh = &mesh_;
      call.rank = rank;
      op.def->reference(call);
    }
  }

  void Communicate(const Op& op) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const TensorType &from = op.operands[i]->type, &to = op.results[i]->type;
      Shards out;
      for (int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
        HostTensor whole = Reduce(values_.at(op.operands[i]), from, mesh_, rank, to.sharding);
        out.emplace_back(to.dtype, LocalShape(to, mesh_));
        GlobalToLocal(whole.raw(), to, mesh_, rank, out.back().raw());
      }
      values_[op.results[i]] = std::move(out);
    }
  }

  // The padding of results becomes what the passes may count on, at worst: zero or garbage.
  void SettlePadding(const Op& op) {
    bool clean = true;
    for (const Value* v : op.operands) {
      clean = clean && PaddingIsZero(values_.at(v), v->type, mesh_);
    }
    clean = clean && (KeepsZeroPadding(op) || op.def->communicates);
    clean = clean || op.name() == "local_slice" || op.name() == "zero_padding";
    for (const Value* r : op.results) {
      if (!clean) {
        Poison(values_.at(r), r->type, mesh_);
      } else if (!PaddingIsZero(values_.at(r), r->type, mesh_)) {
        Fail(StrCat("op ", op.name(), " does not keep the padding of result ", r->index,
                    " zero: ", TypeToString(r->type, mesh_)));
      }
    }
  }

  const Graph& graph_;
  const Mesh& mesh_;
  ShardedValues values_;
};

}  // namespace

Shards Distribute(const HostTensor& whole, const TensorType& type, const Mesh& mesh) {
  std::vector<int> sum = type.sharding.partial_sum.ToVector();
  std::vector<int> max = type.sharding.partial_max.ToVector();
  int64_t terms = mesh.GroupSize(sum);
  Shards shards;
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    HostTensor mine = whole;
    int64_t term = mesh.GroupIndex(rank, sum), below = mesh.GroupIndex(rank, max);
    for (int64_t i = 0; i < whole.num_elements(); ++i) {
      // Terms of both signs, not whole where they need not be, and what is missing.
      auto other = [&](int64_t k) {
        double size = static_cast<double>(2 * k + 3 + i % 4);
        return (k % 2 ? -1 : 1) * (IsFloat(type.dtype) ? size * 0.37 : size);
      };
      double v = term == 0 ? whole.AsDouble(i) : other(term);
      for (int64_t k = 1; term == 0 && k < terms; ++k) v -= other(k);
      if (term != 0 || terms > 1 || below != 0) mine.SetDouble(i, v - static_cast<double>(below));
    }
    shards.emplace_back(type.dtype, LocalShape(type, mesh));
    GlobalToLocal(mine.raw(), type, mesh, rank, shards.back().raw());
  }
  return shards;
}

HostTensor Assemble(const Shards& shards, const TensorType& type, const Mesh& mesh) {
  HostTensor first;
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    HostTensor whole = Reduce(shards, type, mesh, rank, Sharding(type.shape.size()));
    if (rank == 0) {
      first = std::move(whole);
    } else if (!SameBytes(first, whole)) {
      Fail(StrCat("rank ", rank, " and rank 0 disagree"));
    }
  }
  return first;
}

std::vector<HostTensor> InterpretSpmd(const Graph& graph,
                                      const std::map<const Value*, HostTensor>& given) {
  return Machine(graph, given).Run();
}

}  // namespace shardc::testing
