#include "tests/exec/fuzz.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "ir/diagnostic.h"
#include "passes/find_layers.h"

namespace shardc::testing {
namespace {

// Parameters that go by the same rule: h.0.x and h.1.x, as a glob.
std::string LayerGlob(const std::string& name) {
  std::string glob;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = std::isdigit(static_cast<unsigned char>(name[i])) != 0;
    const bool number = digit && i > 0 && name[i - 1] == '.';
    if (!number) {
      glob += name[i];
      continue;
    }
    while (i + 1 < name.size() && std::isdigit(static_cast<unsigned char>(name[i + 1]))) ++i;
    glob += '*';
  }
  return glob;
}

bool IsPipeline(const MeshAxis& axis) { return axis.name == "pp"; }

// Its axis, and maybe virtual stages and which layers are on which.
std::string RandomPipeline(Dice& dice, const Graph& graph, int64_t stages) {
  std::string text = "pipeline_axis: \"pp\"\n";
  auto layers = static_cast<int64_t>(FindLayers(graph).size());
  if (stages < 2 || layers < stages) return text;
  int64_t runs = stages;
  if (dice.Chance(40)) {
    const int64_t each = dice.Between(1, layers / stages);
    text += StrCat("virtual_stages: ", each, "\n");
    runs *= each;
  }
  if (!dice.Chance(30)) return text;
  for (int64_t run = 1; run < runs; ++run) {
    const int64_t here = dice.Between(1, layers - (runs - run));
    text += StrCat("stage_layers: ", here, "\n");
    layers -= here;
  }
  return StrCat(text, "stage_layers: ", layers, "\n");
}

std::string Segments(Dice& dice, int64_t size) {
  int64_t left = size;
  std::string text;
  for (int64_t n = dice.Between(2, 3); n > 1 && left > 1; --n) {
    const int64_t part = dice.Between(1, left - 1);
    text += StrCat(" segments: ", part);
    left -= part;
  }
  return StrCat(text, " segments: ", left);
}

// "shard_spec { ... }" that cuts a tensor of this shape; empty if it does not cut it.
std::string RandomCut(Dice& dice, const Shape& shape, const Mesh& mesh, bool by_name) {
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (rank == 0) return "";
  const bool may_be_illegal = dice.Chance(3);
  std::vector<int64_t> parts(shape.size(), 1);
  std::string text;
  int64_t last = 0, cuts = 0;
  // Over several axes, as a sequence is in stretches for context parallelism.
  const bool one_dim = dice.Chance(15), all_from_end = dice.Chance(50);
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    if (!dice.Chance(60) || (IsPipeline(mesh.axes()[axis]) && !may_be_illegal)) continue;
    const int64_t dim = one_dim && cuts > 0 ? last : dice.Between(0, rank - 1);
    int64_t& p = parts[dim];
    if (!may_be_illegal && shape[dim] < p * mesh.axis_size(axis)) continue;
    p *= mesh.axis_size(axis);
    const bool from_end = by_name && (one_dim ? all_from_end : dice.Chance(50));
    text +=
        StrCat(" dims: ", from_end ? dim - rank : dim, " axes: \"", mesh.axes()[axis].name, "\"");
    last = dim;
    ++cuts;
  }
  if (text.empty()) return "";
  if (cuts == 1 && dice.Chance(8)) {
    text += Segments(dice, shape[last]);
  } else if ((one_dim || cuts == 1) && dice.Chance(15)) {
    text += StrCat(" balanced_segments: ", dice.Between(2, 5));
  }
  return " shard_spec {" + text + " }";
}

// Rules for activations: by role, or for what leaves a module.
std::string RandomValueRules(Dice& dice, const Graph& graph, const Mesh& mesh) {
  std::vector<const Op*> ops;
  for (const auto& op : graph.ops()) {
    if (op->site.empty() || op->operands.empty() || op->results.empty()) continue;
    if (op->out().rank() >= 2) ops.push_back(op.get());
  }
  std::string text;
  for (int64_t n = dice.Chance(20) ? dice.Between(4, 10) : dice.Between(1, 3);
       n > 0 && !ops.empty(); --n) {
    const Op& op = *dice.Pick(ops);
    const std::string cut = RandomCut(dice, op.out().shape, mesh, true);
    if (cut.empty()) continue;
    const std::string what =
        dice.Chance(30) ? StrCat("role: ", dice.Pick<std::string>({"QKV", "ATTENTION_OUT", "MLP_UP",
                                                                   "MLP_DOWN", "TOKEN_EMBEDDING"}))
                        : StrCat("match: \"", dice.Chance(60) ? LayerGlob(op.site) : op.site, "\"");
    text += StrCat("value { ", what, cut, " may_match_nothing: true }\n");
  }
  return text;
}

std::string RandomZero(Dice& dice, const Mesh& mesh) {
  std::string text = StrCat("zero_stage: ", dice.Between(1, 3), "\n");
  if (dice.Chance(40)) return text;
  for (const MeshAxis& a : mesh.axes()) {
    if (dice.Chance(IsPipeline(a) ? 3 : 60)) text += StrCat("zero_axes: \"", a.name, "\"\n");
  }
  return text;
}

// Mostly a divisor of the batch.
std::string RandomMicrobatches(Dice& dice, const Graph& graph) {
  if (graph.inputs()[0]->type.rank() == 0) return "";
  const int64_t batch = graph.inputs()[0]->type.shape[0];
  std::vector<int64_t> divisors;
  for (int64_t n = 2; n <= batch; ++n) {
    if (batch % n == 0) divisors.push_back(n);
  }
  if (divisors.empty()) return "";
  return StrCat("microbatches: ", dice.Chance(95) ? dice.Pick(divisors) : batch + 1, "\n",
                dice.Chance(20) ? "microbatches_together: 2\n" : "");
}

bool HasRoles(const Graph& graph) {
  const std::vector<Op*> params = graph.Params();
  return std::any_of(params.begin(), params.end(),
                     [](const Op* param) { return param->attrs.Has("role"); });
}

// Dim 0 of all inputs is of one size.
bool HaveOneBatch(const Graph& graph) {
  return std::all_of(graph.inputs().begin(), graph.inputs().end(), [&](const auto& input) {
    const Shape &first = graph.inputs()[0]->type.shape, &shape = input->type.shape;
    return !first.empty() && !shape.empty() && shape[0] == first[0];
  });
}

double Largest(const HostTensor& t) {
  double largest = 0;
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    largest = std::max(largest, std::abs(t.AsDouble(i)));
  }
  return largest;
}

// Tensors whose zeros are rounding noise beside the others of the kind.
std::string KindOf(const std::string& name) {
  if (name.starts_with("grad.")) return "gradient";
  for (const char* state : {".adamw.m", ".adamw.v", ".sgd.momentum"}) {
    if (name.ends_with(state)) return state;
  }
  return "";
}

void Compare(const Tensors& got, const Tensors& want, bool states, double tolerance, double least,
             std::string& problems) {
  auto kind_of = [&](const std::string& name) {
    const std::string kind = KindOf(name);
    return kind.empty() && states ? "parameter" : kind;
  };
  std::map<std::string, double> largest;
  for (const auto& [name, t] : want) {
    double& of_kind = largest[kind_of(name)];
    of_kind = std::max(of_kind, Largest(t));
  }
  for (const auto& [name, t] : want) {
    auto found = got.find(name);
    if (found == got.end()) {
      problems += StrCat("no ", name, "\n");
      continue;
    }
    const std::string kind = kind_of(name);
    const double floor = kind.empty() ? least : 1e-2 * largest[kind] + least;
    const double d = WorstDifference(found->second, t, floor);
    if (!(d <= tolerance)) problems += StrCat(name, " differs by ", d, "\n");
  }
}

}  // namespace

std::string RandomModel(Dice& dice, const std::string& dtype) {
  const int64_t heads = dice.Between(1, 6);
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= heads; ++d) {
    if (heads % d == 0) divisors.push_back(d);
  }
  const std::string positions = dice.Pick<std::string>({"learned", "rope", "none"});
  int64_t head_dim = positions == "rope" ? 2 * dice.Between(1, 4) : dice.Between(1, 9);
  // The norm of a few elements cancels them, and f32 has little left to compare.
  while (dtype == "f32" && heads * head_dim < 12) head_dim += 2;
  const int64_t hidden = heads * head_dim, seq = dice.Between(1, 9);
  int64_t seed = 0;
  // Now and then large enough to be cut at multiples of 8.
  auto size = [&](int64_t low, int64_t high) {
    return dice.Chance(8) ? dice.Between(1030, 1600) : dice.Between(low, high);
  };
  std::string model = StrCat(
      "builtin:gpt?layers=", dice.Chance(75) ? dice.Between(1, 2) : dice.Between(3, 4),
      ",hidden=", hidden, ",heads=", heads, ",kv_heads=", dice.Pick(divisors),
      ",vocab=", size(2, 60), ",seq=", seq, ",batch=", dice.Between(1, 6), ",positions=", positions,
      ",norm=", dice.Pick<std::string>({"layer_norm", "rms_norm"}),
      ",activation=", dice.Pick<std::string>({"gelu_tanh", "gelu", "relu", "silu", "swiglu"}),
      ",tied=", dice.Pick<std::string>({"true", "false"}),
      ",bias=", dice.Pick<std::string>({"true", "false"}),
      ",qkv=", dice.Pick<std::string>({"fused", "separate"}), ",dtype=", dtype,
      ",seed=", seed = dice.Between(0, 1000),
      // Weights that matter: with the usual 0.02 attention is near uniform.
      ",init_std=0.3");
  if (seed % 4 == 0) model += ",dropout=0.2";
  if (seed % 3 == 0) model += ",attention_dropout=0.3";
  if (dice.Chance(50)) model += StrCat(",ffn=", size(1, 40));
  if (dice.Chance(30)) model += StrCat(",max_positions=", seq + dice.Between(0, 5));
  return model;
}

std::string RandomMesh(Dice& dice, int64_t layers) {
  static const std::vector<std::vector<std::string>> kNames = {
      {"tp"},       {"dp"},       {"dp", "tp"},       {"dp", "tp"},
      {"tp", "dp"}, {"a", "tp"},  {"dp", "a", "tp"},  {"cp"},
      {"dp", "cp"}, {"cp", "tp"}, {"dp", "cp", "tp"}, {"a", "b", "c"}};
  static const std::vector<std::vector<std::string>> kPipelines = {
      {"pp"},       {"pp", "tp"},       {"pp", "dp"}, {"dp", "pp"},
      {"tp", "pp"}, {"pp", "dp", "tp"}, {"pp", "cp"}, {"pp", "cp", "tp"}};
  const std::vector<std::string>& names =
      dice.Pick(dice.Chance(layers > 1 ? 40 : 3) ? kPipelines : kNames);
  std::string mesh;
  const int64_t most = names.size() > 1 && dice.Chance(15) ? 12 : 8;
  int64_t ranks = 1;
  for (const std::string& name : names) {
    int64_t size = dice.Between(names.size() == 1 ? 2 : 1, std::min<int64_t>(most / ranks, 8));
    if (names.size() > 1 && size > 4) size = dice.Between(2, 3);
    size = std::max<int64_t>(1, std::min(size, most / ranks));
    if (name == "pp" && dice.Chance(95))
      size = std::max<int64_t>(1, std::min(std::max<int64_t>(2, size), layers));
    ranks *= size;
    mesh += StrCat(mesh.empty() ? "" : ",", name, "=", size);
  }
  return mesh;
}

std::string RandomSpec(Dice& dice, const Graph& graph, const Mesh& mesh, bool optimizer,
                       bool microbatches) {
  if (dice.Chance(HasRoles(graph) ? 20 : 2)) {
    return dice.Pick<std::string>({"megatron", "megatron_sp", "ulysses", "dp", "megatron_hf_gpt2"});
  }
  std::string text = "# made by the fuzz test\n";
  std::vector<MeshAxis> axes = mesh.axes();
  if (dice.Chance(30)) std::ranges::reverse(axes);
  const Mesh listed(std::move(axes));  // in the order in which rules list axes
  const int cut_percent = static_cast<int>(dice.Between(10, 100));
  const bool by_layer = dice.Chance(60), replicates = dice.Chance(25);
  std::set<std::string> ruled;
  for (const Op* param : graph.Params()) {
    const std::string& name = param->attrs.String("name");
    const std::string match = by_layer ? LayerGlob(name) : name;
    if (!ruled.insert(match).second || !dice.Chance(cut_percent)) continue;
    std::string cut = RandomCut(dice, param->out().shape, listed, true);
    if (cut.empty()) continue;
    if (replicates && dice.Chance(50)) {
      cut += StrCat(" compute_spec { pattern: TP1D output_replicate: ",
                    dice.Chance(70) ? "true" : "false", " }");
    }
    text += StrCat("param { match: \"", match, "\"", cut, " }\n");
  }
  // All by the batch, or each as it comes.
  const Value* first = graph.inputs().front().get();
  const bool alike = dice.Chance(40) && HaveOneBatch(graph);
  std::string batch;
  if (alike) batch = RandomCut(dice, {first->type.shape[0]}, listed, false);
  for (const auto& input : graph.inputs()) {
    if (!alike && !dice.Chance(60)) continue;
    const std::string cut = alike ? batch : RandomCut(dice, input->type.shape, listed, false);
    if (!cut.empty()) text += StrCat("input { match: \"", input->name, "\"", cut, " }\n");
  }
  if (dice.Chance(30)) text += RandomValueRules(dice, graph, listed);
  if (dice.Chance(optimizer ? 40 : 5)) text += RandomZero(dice, mesh);
  if (microbatches && dice.Chance(40)) text += RandomMicrobatches(dice, graph);
  if (auto pp = mesh.FindAxis("pp")) text += RandomPipeline(dice, graph, mesh.axis_size(*pp));
  return text;
}

void AddRandomOptimizer(Dice& dice, RunSetup& setup) {
  OptimizerOptions& o = setup.pipeline.optimizer;
  o.kind = dice.Pick<std::string>({"", "adamw", "sgd"});
  if (o.kind.empty()) return;
  setup.steps = 3;
  o.rate.lr = 1e-2;
  o.eps = 1e-4;  // with 1e-8 a gradient of rounding noise makes a visible step
  if (dice.Chance(50)) o.weight_decay = 0.1;
  if (dice.Chance(60)) o.clip_norm = dice.Chance(50) ? 0.05 : 1.0;
  if (o.kind == "sgd" && dice.Chance(50)) o.momentum = 0.9;
}

void AddRandomMemorySaving(Dice& dice, RunSetup& setup) {
  setup.pipeline.recompute = dice.Pick<std::string>({"none", "none", "selective", "full"});
  if (dice.Chance(30))
    setup.pipeline.chunk = {.least_bytes = 1, .pieces = static_cast<int>(dice.Between(2, 3))};
}

Tensors FuzzInputs(Dice& dice, const Graph& graph, int64_t vocab) {
  Tensors inputs = RandomInputs(graph, vocab, static_cast<uint64_t>(dice.Between(0, 1 << 20)));
  if (auto mask = inputs.find("loss_mask"); mask != inputs.end()) {
    HostTensor& m = mask->second;
    for (int64_t i = 0; i < m.num_elements(); ++i) m.SetDouble(i, dice.Chance(70) ? 1 : 0);
    m.SetDouble(dice.Between(0, m.num_elements() - 1), 1);
  }
  auto labels = inputs.find("labels");
  if (labels == inputs.end() || !dice.Chance(50)) return inputs;
  // The last label is the one that a shift leaves in place.
  HostTensor& l = labels->second;
  const bool whole_rows = dice.Chance(50);
  const int64_t row = l.shape().back();
  for (int64_t i = 0; i + (whole_rows ? row : 1) < l.num_elements(); ++i) {
    if (whole_rows ? i / row % 2 == 0 : dice.Chance(30)) l.SetDouble(i, -100);
  }
  return inputs;
}

std::string Differences(const RunResult& got, const RunResult& want, double tolerance,
                        double least) {
  std::string problems;
  Compare(got.outputs, want.outputs, false, tolerance, least, problems);
  Compare(got.states, want.states, true, tolerance, least, problems);
  if (got.losses.size() != want.losses.size()) return problems + "another number of losses\n";
  for (size_t i = 0; i < want.losses.size(); ++i) {
    const double d = std::abs(got.losses[i] - want.losses[i]);
    if (!(d <= tolerance * std::max(1e-3, std::abs(want.losses[i])))) {
      problems += StrCat("loss of step ", i, " differs by ", d, "\n");
    }
  }
  return problems;
}

std::string CheckSharded(Graph graph, const RunSetup& setup, const Tensors& inputs,
                         const RunResult& serial, double tolerance, std::string& refusal,
                         double least) {
  refusal.clear();
  try {
    return Differences(CompileAndRun(std::move(graph), setup, inputs), serial, tolerance, least);
  } catch (const Diagnostic& d) {
    refusal = d.what();
    if (d.code() == ExitCode::kBadSpec && !d.fix().empty()) return "";
    return StrCat("refused without advice, or for another reason than the spec: ", d.what(), "\n");
  } catch (const std::exception& e) {
    return StrCat(e.what(), "\n");
  }
}

std::string Reproduction(const std::string& model, const RunSetup& setup) {
  const bool text = setup.spec.find('\n') != std::string::npos;
  const OptimizerOptions& o = setup.pipeline.optimizer;
  std::string command =
      StrCat("shardc compile '", model, "' --spec ", text ? "fuzz.textproto" : setup.spec,
             setup.mesh.empty() ? "" : " --mesh " + setup.mesh, " --loss ", setup.pipeline.loss);
  if (!o.kind.empty()) {
    command +=
        StrCat(" --optimizer ", o.kind, " --lr ", o.rate.lr, " --eps ", o.eps, " --weight-decay ",
               o.weight_decay, " --clip-norm ", o.clip_norm, " --momentum ", o.momentum);
  }
  if (setup.microbatches > 0) command += StrCat(" --microbatches ", setup.microbatches);
  if (setup.pipeline.precision.compute != "f32") {
    command += " --precision " + setup.pipeline.precision.compute;
  }
  if (!setup.pipeline.precision.reduce_in.empty()) {
    command += " --reduce-in " + setup.pipeline.precision.reduce_in;
  }
  if (setup.pipeline.recompute != "none") command += " --recompute " + setup.pipeline.recompute;
  return command + " -o plan\n" + (text ? "fuzz.textproto:\n" + setup.spec : "");
}

int64_t EnvironmentOr(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : otherwise;
}

}  // namespace shardc::testing
