#include "tests/gpu/kernel_cases.h"

#include <cmath>
#include <cstring>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/program.h"
#include "ir/shard_copy.h"
#include "runtime/cuda/kernel_choices.h"

namespace shardc::testing {
namespace {

// Statistics of halves are f32.
DType OperandType(const std::string& op, size_t i, DType dtype) {
  bool half = dtype == DType::kBF16 || dtype == DType::kF16;
  const bool lse = (op == "attention_grad" && i == 5) || (op == "packed_attention_grad" && i == 3);
  return lse && half ? DType::kF32 : dtype;
}

std::vector<TensorType> ResultTypes(const KernelCase& c) {
  if (!c.types.empty())
    return {c.types.begin() + static_cast<int64_t>(c.operands.size()), c.types.end()};
  OpSample sample{c.op, "", c.operands, c.attrs};
  SampleGraph g = BuildSample(sample);
  std::vector<TensorType> types;
  for (const Value* v : g.op->results) types.push_back(v->type);
  return types;
}

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-11;
    case DType::kF32:
      return 2e-5;
    case DType::kF16:
      return 4e-3;
    case DType::kBF16:
      return 2.5e-2;
    default:
      return 0;
  }
}

std::string Differs(const HostTensor& got, const HostTensor& want, double tolerance) {
  double scale = 0;  // sums over many elements are as exact as their largest
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    if (std::isfinite(want.AsDouble(i))) scale = std::max(scale, std::abs(want.AsDouble(i)));
  }
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    double a = got.AsDouble(i), b = want.AsDouble(i);
    if ((std::isnan(a) && std::isnan(b)) || a == b) continue;
    if (std::abs(a - b) <= tolerance * (std::abs(b) + 0.1 * std::min(scale, 10.0))) continue;
    return StrCat("element ", i, " is ", a, " and not ", b);
  }
  return "";
}

// One rank of a case on both sides.
class Runner {
 public:
  Runner(KernelMachine& machine, const KernelCase& c, int64_t rank) : machine_(machine), c_(c) {
    instruction_.op = c.op;
    instruction_.attrs = c.attrs;
    std::vector<TensorType> results = ResultTypes(c);
    for (size_t i = 0; i < c.operands.size(); ++i) {
      Add(c.types.empty() ? TensorType(c.operands[i].dtype(), c.operands[i].shape()) : c.types[i]);
    }
    for (const TensorType& t : results) Add(t);
    for (size_t i = 0; i < types_.size(); ++i) {
      HostTensor local(types_[i].dtype, LocalShapeOf(types_[i]));
      // Padding, and results before they are written, hold what no kernel may rely on.
      for (int64_t j = 0; j < local.bytes(); ++j) local.raw()[j] = std::byte{0x33};
      if (i < c.operands.size()) {
        if (c.mesh && !c.types.empty()) {
          Fill(c.operands[i], types_[i], rank, &local);
        } else {
          local = c.operands[i];
        }
      }
      host_.push_back(std::move(local));
    }
    call_.attrs = &c.attrs;
    call_.mesh = c.mesh ? &*c.mesh : nullptr;
    call_.rank = rank;
    choices_.may_measure = true;  // in the first run; later ones do the same
  }
  ~Runner() {
    for (std::byte* p : device_) machine_.Free(p);
  }

  // Null results: there is no kernel.
  std::optional<std::vector<HostTensor>> OnMachine() {
    std::vector<std::byte*> data;
    for (HostTensor& t : host_) {
      data.push_back(Allocate(t.bytes()));
      machine_.Upload(data.back(), t.raw(), t.bytes());
    }
    Bind(data);
    Program program;
    KernelRequest request{program, instruction_, call_};
    auto kernel = machine_.Make(request);
    if (!kernel) return std::nullopt;
    cuda::Launch launch = machine_.NewLaunch();
    kernel->Prepare(launch);
    launch.workspace_bytes = kernel->workspace_bytes();
    launch.workspace = Allocate(launch.workspace_bytes);
    std::byte* fault = Allocate(sizeof(cuda::Fault));
    launch.fault = reinterpret_cast<cuda::Fault*>(fault);
    fault_ = {};
    machine_.Upload(fault, reinterpret_cast<std::byte*>(&fault_), sizeof(fault_));
    kernel->Tune(launch, choices_);
    if (kernel->workspace_bytes() > launch.workspace_bytes) {  // of another way, which was taken
      launch.workspace_bytes = kernel->workspace_bytes();
      launch.workspace = Allocate(launch.workspace_bytes);
    }
    for (size_t i = 0; i < host_.size(); ++i) {
      machine_.Upload(data[i], host_[i].raw(), host_[i].bytes());
    }
    kernel->Enqueue(launch);
    machine_.Wait();
    machine_.Download(reinterpret_cast<std::byte*>(&fault_), fault, sizeof(fault_));
    std::vector<HostTensor> results;
    for (size_t i = c_.operands.size(); i < host_.size(); ++i) {
      results.push_back(host_[i]);
      machine_.Download(results.back().raw(), data[i], results.back().bytes());
    }
    return results;
  }

  std::vector<HostTensor> OnReference() {
    std::vector<HostTensor> copies = host_;
    std::vector<std::byte*> data;
    for (HostTensor& t : copies) data.push_back(t.raw());
    Bind(data);
    Program program;
    MakeReferenceKernel({program, instruction_, call_})->Run();
    return {copies.begin() + static_cast<int64_t>(c_.operands.size()), copies.end()};
  }
  const cuda::Fault& fault() const { return fault_; }

 private:
  void Add(const TensorType& type) { types_.push_back(type); }
  Shape LocalShapeOf(const TensorType& t) const {
    return c_.mesh && !c_.types.empty() ? LocalShape(t, *c_.mesh) : t.shape;
  }
  std::byte* Allocate(int64_t bytes) {
    device_.push_back(machine_.Allocate(std::max<int64_t>(bytes, 64)));
    return device_.back();
  }
  void Bind(const std::vector<std::byte*>& data) {
    views_.clear();
    for (size_t i = 0; i < types_.size(); ++i) {
      views_.push_back(
          {data[i], types_[i].dtype, LocalShapeOf(types_[i]), c_.mesh ? &types_[i] : nullptr});
    }
    call_.in = std::span(views_).first(c_.operands.size());
    call_.out = std::span(views_).subspan(c_.operands.size());
  }
  void Fill(const HostTensor& whole, const TensorType& type, int64_t rank,
            HostTensor* local) const {
    std::vector<std::pair<int64_t, int64_t>> at = {{0, 0}};  // flat: whole, local
    for (int d = 0; d < type.rank(); ++d) {
      auto dim = static_cast<size_t>(d);
      std::vector<std::pair<int64_t, int64_t>> next;
      for (auto [w, l] : at) {
        for (const Run& run : LocalRuns(type.shape[dim], type.sharding.dims[dim], *c_.mesh, rank)) {
          for (int64_t i = 0; i < run.size; ++i) {
            next.emplace_back(w * type.shape[dim] + run.global + i,
                              l * local->shape()[dim] + run.local + i);
          }
        }
      }
      at = std::move(next);
    }
    auto size = static_cast<size_t>(DTypeSize(type.dtype));
    for (auto [w, l] : at) {
      std::memcpy(local->raw() + static_cast<size_t>(l) * size,
                  whole.raw() + static_cast<size_t>(w) * size, size);
    }
  }

  KernelMachine& machine_;
  const KernelCase& c_;
  Instruction instruction_;
  std::vector<TensorType> types_;
  std::vector<HostTensor> host_;
  std::vector<TensorView> views_;
  std::vector<std::byte*> device_;
  cuda::Fault fault_;
  cuda::KernelChoices choices_;
  KernelCall call_;
};

}  // namespace

bool HasKernel(const std::string& op) {
  const OpDef& def = GetOpDef(op);
  return !def.communicates && !def.is_state && op != "update" && op != "constant";
}

std::vector<KernelCase> SampleCases(DType dtype) {
  std::vector<KernelCase> cases;
  for (const OpSample& s : OpSamples()) {
    if (!HasKernel(s.op)) continue;
    KernelCase c{s.Name(), s.op, s.attrs, {}};
    for (size_t i = 0; i < s.operands.size(); ++i) {
      c.operands.push_back(FloatsAs(s.operands[i], OperandType(s.op, i, dtype)));
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

std::string RunCase(KernelMachine& machine, const KernelCase& c) {
  int64_t ranks = c.mesh ? c.mesh->num_ranks() : 1;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Runner runner(machine, c, rank);
    auto got = runner.OnMachine(), again = runner.OnMachine();
    if (!got) return "no kernel";
    std::vector<HostTensor> want = runner.OnReference();
    DType loosest = DType::kF64;
    auto rougher = [&](DType d) {
      if (IsFloat(d) && Tolerance(d) > Tolerance(loosest)) loosest = d;
    };
    for (const HostTensor& t : c.operands) rougher(t.dtype());
    for (const HostTensor& t : want) rougher(t.dtype());
    for (size_t i = 0; i < want.size(); ++i) {
      std::string differs = Differs((*got)[i], want[i], Tolerance(loosest));
      if (!differs.empty()) return StrCat("rank ", rank, " result ", i, ": ", differs);
      const auto bytes = static_cast<size_t>(want[i].bytes());
      if (bytes > 0 && std::memcmp((*got)[i].raw(), (*again)[i].raw(), bytes) != 0) {
        return StrCat("rank ", rank, " result ", i, ": two runs differ");
      }
    }
    if (runner.fault().kind != cuda::Fault::kNone) return "a fault is reported";
  }
  return "";
}

std::vector<HostTensor> RunOn(KernelMachine& machine, const KernelCase& c) {
  return Runner(machine, c, 0).OnMachine().value_or(std::vector<HostTensor>());
}

cuda::Fault RunFault(KernelMachine& machine, const KernelCase& c) {
  Runner runner(machine, c, 0);
  runner.OnMachine();
  return runner.fault();
}

}  // namespace shardc::testing
