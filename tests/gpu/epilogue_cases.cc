#include "tests/gpu/epilogue_cases.h"

#include "ir/diagnostic.h"
#include "ir/text.h"
#include "runtime/cuda/kernel_choices.h"
#include "tests/exec/harness.h"

namespace shardc::testing {
namespace {

using cuda::Epilogue;

// Of a layer: rows (with their leading dims), and the dims that a product goes from and to.
struct Size {
  Shape rows;
  int64_t from, to;
};

class Cases {
 public:
  explicit Cases(DType dtype) : t_(DTypeName(dtype)), half_(DTypeSize(dtype) == 2) {}

  void Add(const Size& z) {
    const std::string x = Type(z.rows, z.from), y = Type(z.rows, z.to), w = Type({z.from}, z.to),
                      v = Type({z.to}, z.from), b = Type({}, z.to);
    const std::string tanh = R"({approximate="tanh"})", sums = Sums(z, "");
    auto gelu = [&](const std::string& product, const std::string& results) {
      return StrCat("(%x: ", x, ", %w: ", w, ", %v: ", v, ", %b: ", b, ") -> (", results,
                    ") {\n  %0 = ", product, " : ", y, "\n  %y = gelu %0 ", tanh, " : ", y, "\n}");
    };
    Put("matmul", z, Epilogue::kGelu, gelu("matmul %x, %w", "%y"));
    Put("matmul_nt", z, Epilogue::kGelu, gelu("matmul_nt %x, %v", "%y"));
    Put("linear", z, Epilogue::kGelu, gelu("linear %x, %w, %b {nt=false}", "%y"));
    Put("linear nt", z, Epilogue::kGelu, gelu("linear %x, %v, %b {nt=true}", "%y"));
    if (z.to % 8 == 0) {
      Put("matmul", z, Epilogue::kGeluAux, gelu("matmul %x, %w", "%y, %0"));
      Put("linear", z, Epilogue::kGeluAux, gelu("linear %x, %w, %b {nt=false}", "%y, %0"));
      Put("linear nt", z, Epilogue::kGeluAux, gelu("linear %x, %v, %b {nt=true}", "%y, %0"));
      auto grad = [&](const std::string& product, bool with) {
        return StrCat("(%g: ", x, ", %w: ", w, ", %v: ", v, ", %x: ", y, ") -> (%y",
                      with ? ", %s" : "", ") {\n  %0 = ", product, " : ", y,
                      "\n  %y = gelu_grad %0, %x ", tanh, " : ", y, "\n",
                      with ? StrCat("  %s = reduce_sum %y ", sums, " : ", b, "\n") : "", "}");
      };
      for (bool with : {false, true}) {
        const Epilogue e = with ? Epilogue::kGeluGradSums : Epilogue::kGeluGrad;
        Put("matmul_nt", z, e, grad("matmul_nt %g, %v", with));
        Put("matmul", z, e, grad("matmul %g, %w", with));
      }
    }
    for (const std::string& out : {t_, std::string("f32")}) {
      if (out != t_ && !half_) continue;
      const std::string attribute = out == t_ ? "" : ", out=\"f32\"";
      auto weight = [&](const char* summed, int64_t n) {
        return StrCat("(%x: ", x, ", %g: ", y, ") -> (%w, %s) {\n  %w = matmul_tn %x, %g {batch=0",
                      attribute, "} : ", Type({z.from}, z.to, out), "\n  %s = reduce_sum ", summed,
                      " ", Sums(z, attribute), " : ", Type({}, n, out), "\n}");
      };
      Put("to " + out, z, Epilogue::kSumsOfRight, weight("%g", z.to));
      Put("to " + out, z, Epilogue::kSumsOfLeft, weight("%x", z.from));
    }
  }
  std::vector<EpilogueCase> Take() { return std::move(cases_); }

 private:
  std::string Type(Shape lead, int64_t last, const std::string& type = "") const {
    lead.push_back(last);
    return (type.empty() ? t_ : type) + ShapeToString(lead);
  }
  static std::string Sums(const Size& z, const std::string& attributes) {
    std::string axes;
    for (size_t i = 0; i < z.rows.size(); ++i) axes += StrCat(i == 0 ? "" : ", ", i);
    return StrCat("{axes=[", axes, "], keepdims=false", attributes, "}");
  }
  void Put(const std::string& name, const Size& z, Epilogue e, const std::string& graph) {
    cases_.push_back({StrCat(cuda::EpilogueName(e), " ", name, " ", ShapeToString(z.rows), " ",
                             z.from, " to ", z.to, " ", t_),
                      e, "graph @g" + graph});
  }

  std::string t_;
  bool half_;
  std::vector<EpilogueCase> cases_;
};

}  // namespace

std::vector<EpilogueCase> EpilogueCases(DType dtype) {
  Cases cases(dtype);
  cases.Add({{37}, 24, 40});
  cases.Add({{3, 43}, 33, 72});
  cases.Add({{2, 32}, 64, 129});
  return cases.Take();
}

std::string TryEpilogue(KernelMachine& machine, cuda::EpilogueLibrary& library,
                        const EpilogueCase& c) {
  const Graph graph = ParseGraph(c.graph, c.name);
  const std::vector<Program> programs = ProgramsFor(graph);
  const Program& program = programs[0];
  std::vector<std::string> refusals;
  const auto groups = cuda::FindProductGroups(program, &refusals);
  if (groups.size() != 1 || groups[0].epilogue != c.epilogue) {
    return StrCat("it is not the group: ", refusals.empty() ? "" : refusals[0]);
  }
  struct Block {
    KernelMachine& machine;
    std::byte* data;
    Block(KernelMachine& m, int64_t bytes) : machine(m), data(m.Allocate(bytes)) {}
    Block(Block&& o) noexcept : machine(o.machine), data(std::exchange(o.data, nullptr)) {}
    ~Block() {
      if (data) machine.Free(data);
    }
  };
  Block arena(machine, std::max<int64_t>(program.arena_bytes, 256));
  std::vector<Block> inputs;
  std::vector<TensorView> views;
  for (const Buffer& b : program.buffers) {
    std::byte* data = arena.data + b.offset;
    if (b.space == Space::kInput) {
      inputs.emplace_back(machine, b.bytes);
      data = inputs.back().data;
    }
    views.push_back({data, b.type.dtype, b.local_shape, &b.type});
  }
  cuda::Launch launch = machine.NewLaunch();
  cuda::KernelChoices choices;
  choices.may_measure = true;
  std::vector<std::unique_ptr<cuda::CudaKernel>> kernels;
  std::vector<cuda::CudaKernel*> separate;
  std::vector<std::vector<TensorView>> in(program.instructions.size()), out = in;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    for (int b : instruction.operands) in[i].push_back(views[b]);
    for (int b : instruction.results) out[i].push_back(views[b]);
    kernels.push_back(
        machine.Make({program, instruction,
                      KernelCall{&instruction.attrs, in[i], out[i], &program.mesh, 0, 1}}));
    if (!kernels.back()) return "no kernel for " + instruction.op;
    kernels.back()->Prepare(launch);
    separate.push_back(kernels.back().get());
  }
  auto product = cuda::FusedProductOf(program, groups[0], [&](int b) { return views[b]; });
  auto kernel = cuda::MakeGroupKernel(separate, product, library);
  kernel->Prepare(launch);
  launch.workspace_bytes = kernel->workspace_bytes();
  Block workspace(machine, std::max<int64_t>(launch.workspace_bytes, 256));
  launch.workspace = workspace.data;
  kernel->Tune(launch, choices);
  machine.Wait();
  return choices.Find(StrCat(cuda::RivalryOf(product, library).key, " ", library.Gpu().Name()))
      .value_or("nothing was noted");
}

}  // namespace shardc::testing
