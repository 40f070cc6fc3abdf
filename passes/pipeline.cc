#include "passes/pipeline.h"

#include <algorithm>
#include <chrono>
#include <iomanip>
#include <ostream>

#include "ir/choices.h"
#include "ir/contains.h"
#include "ir/diagnostic.h"
#include "ir/text.h"
#include "ir/verifier.h"
#include "passes/accumulate.h"
#include "passes/apply_spec.h"
#include "passes/assign_stages.h"
#include "passes/bucket.h"
#include "passes/canonicalize.h"
#include "passes/cast_together.h"
#include "passes/center_masks.h"
#include "passes/chunk.h"
#include "passes/clear_padding.h"
#include "passes/differentiate.h"
#include "passes/follow_cuts.h"
#include "passes/fuse.h"
#include "passes/fuse_elementwise.h"
#include "passes/group_sums.h"
#include "passes/infer_layouts.h"
#include "passes/insert_reshards.h"
#include "passes/loss.h"
#include "passes/loss_scale.h"
#include "passes/lower.h"
#include "passes/make_again.h"
#include "passes/microbatches.h"
#include "passes/move_to_readers.h"
#include "passes/narrow_params.h"
#include "passes/narrow_reads.h"
#include "passes/note_whole.h"
#include "passes/optimize_reshards.h"
#include "passes/order_axes.h"
#include "passes/overlap.h"
#include "passes/param_names.h"
#include "passes/place_stages.h"
#include "passes/precision.h"
#include "passes/propagate.h"
#include "passes/recompute.h"
#include "passes/run_together.h"
#include "passes/schedule.h"
#include "passes/set_mesh.h"
#include "passes/split_axes.h"
#include "passes/split_params.h"
#include "passes/zero.h"

namespace shardc {
namespace {

struct NamedPass {
  const char* name;
  void (*run)(Graph&);
  bool of_collectives = false;  // runs where no reshard is left that is not lowered to one
};

constexpr NamedPass kPasses[] = {
    {"canonicalize", Canonicalize},
    {"center_masks", CenterMasks},
    {"order_axes", OrderAxes},
    {"split_params", SplitParams},
    {"split_axes", SplitAxes},
    {"infer_layouts", InferLayouts},
    {"follow_cuts", FollowCuts},
    {"microbatches",
     [](Graph& g) {
       CutMicrobatches(g, {.count = 2, .where = "microbatches"}, g.FindOutput("loss"));
     }},
    {"accumulate",
     [](Graph& g) {
       AccumulateBatches(g, {.count = 2, .where = "accumulate"}, g.FindOutput("loss"));
     }},
    {"one_by_one", [](Graph& g) { OrderBySchedule(g, OneByOne(g)); }},
    {"forward_first", [](Graph& g) { OrderBySchedule(g, ForwardFirst(g)); }},
    {"differentiate",
     [](Graph& g) {
       Value* loss = g.FindOutput("loss");
       if (!loss) {
         throw Diagnostic("E1601", ExitCode::kBadModel, "differentiate",
                          "the graph has no output \"loss\"");
       }
       if (!loss->type.shape.empty() || !IsFloat(loss->type.dtype)) {
         throw Diagnostic(
             "E1601", ExitCode::kBadModel, "differentiate",
             StrCat("the output \"loss\" is ", TypeToString(loss->type, g.mesh), ", no scalar"));
       }
       AddGradients(g, loss);
     }},
    {"propagate", PropagateShardings},
    {"insert_reshards", InsertReshards},
    {"optimize_reshards", [](Graph& g) { OptimizeReshards(g); }},
    {"lower_reshards", LowerReshards},
    {"clear_padding", ClearPadding},
    {"chunk", [](Graph& g) { Chunk(g, {.least_bytes = 1, .pieces = 2}); }},
    {"recompute_selective", [](Graph& g) { Recompute(g, "selective"); }},
    {"recompute_gathers", [](Graph& g) { Recompute(g, "gathers"); }},
    {"recompute_full", [](Graph& g) { Recompute(g, "full"); }},
    {"make_again", MakeAgain},
    {"bucket_reductions", [](Graph& g) { BucketSmallReductions(g); }, true},
    {"fuse", Fuse},
    {"precision", [](Graph& g) { LowerPrecision(g, {.compute = "bf16", .reduce_in = ""}); }},
    {"reduce_in_f32", ReduceInF32},
    {"fold_casts", FoldCasts},
    {"narrow_params", NarrowParams},
    {"narrow_reads", NarrowReads},
    {"fuse_elementwise", FuseElementwise},
    {"group_sums", GroupSums},
    {"move_to_readers", MoveToReaders},
    {"run_together",
     [](Graph& g) {
       RunTogether(g, {.count = 2, .where = "", .together = 2, .together_where = "run_together"});
     }},
    {"overlap", Overlap, true},
    {"place_stages", PlaceStages},
    {"cast_together", [](Graph& g) { CastTogether(g); }},
};

bool IsReshard(const std::unique_ptr<Op>& op) { return op->name() == "reshard"; }

void RunNamed(Graph& graph, std::string_view name) {
  for (const NamedPass& pass : kPasses) {
    if (name != pass.name) continue;
    if (pass.of_collectives && std::ranges::any_of(graph.ops(), IsReshard)) {
      throw Diagnostic("E6103", ExitCode::kUsage, "--passes",
                       StrCat("'", name, "' orders collectives, and the graph has a reshard"),
                       "run lower_reshards before it");
    }
    return pass.run(graph);
  }
  throw Diagnostic("E6103", ExitCode::kUsage, "--passes", StrCat("there is no pass '", name, "'"),
                   Choices(name, "passes", PassNames()));
}

class Runner {
 public:
  Runner(Graph& graph, const PipelineOptions& options) : graph_(graph), options_(options) {}

  void operator()(const std::string& name, const std::function<void()>& pass) {
    auto start = std::chrono::steady_clock::now();
    pass();
    double ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if (options_.log && options_.timing) {
      *options_.log << std::fixed << std::setprecision(2) << std::setw(10) << ms << " ms  " << name
                    << " (" << graph_.num_ops() << " ops)\n";
    }
    if (!Contains(ran_, name)) ran_.push_back(name);
    const auto& after = options_.print_after;
    if (options_.log && (Contains(after, name) || Contains(after, "all"))) {
      *options_.log << "// after " << name << "\n" << PrintGraph(graph_);
    }
    closed_ = closed_ || name == "insert_reshards";
    if (options_.verify_each) Verify(name);
  }

  // What is wrong is no user's mistake.
  void Verify(const std::string& after) const {
    try {
      VerifyGraph(graph_, closed_);
    } catch (const Diagnostic& d) {
      throw InternalError(StrCat("after ", after, ": ", d.what()));
    }
  }

  // When all have run.
  void RefuseToPrintAfterOthers() const {
    for (const std::string& name : options_.print_after) {
      if (name == "all" || Contains(ran_, name)) continue;
      throw Diagnostic("E6103", ExitCode::kUsage, "--print-after",
                       StrCat("no pass '", name, "' ran"), Choices(name, "those that did", ran_));
    }
  }

  void Named(const char* name) {
    (*this)(name, [&] { RunNamed(graph_, name); });
  }

 private:
  Graph& graph_;
  const PipelineOptions& options_;
  bool closed_ = false;
  std::vector<std::string> ran_;
};

bool HasValuesOf(const Graph& graph, bool (*is)(DType)) {
  return std::any_of(graph.ops().begin(), graph.ops().end(), [&](const auto& op) {
    return std::any_of(op->results.begin(), op->results.end(),
                       [&](const Value* v) { return is(v->type.dtype); });
  });
}

// Of the model itself or of what is made of it. Only its range is so narrow that the gradients of a
// mean over many tokens leave it.
bool PassesF16(const Graph& graph, const PipelineOptions& options) {
  return options.precision.compute == "f16" ||
         HasValuesOf(graph, [](DType t) { return t == DType::kF16; });
}

Value* GradientScale(Graph& graph, const PipelineOptions& options, const Value* loss) {
  if (!PassesF16(graph, options)) return nullptr;
  const bool trains = !options.optimizer.kind.empty();
  if (Value* scale = LossScale(graph, options.loss, loss, trains)) return scale;
  graph.notes.push_back(
      "the gradients of this loss are not scaled: where they are small they vanish in f16, and in "
      "bf16 they do not");
  return nullptr;
}

// What was asked for and makes no difference.
void NoteIdleOptions(Graph& graph, const PipelineOptions& options, bool gradients, bool mixed) {
  auto idle = [&](const char* option, const char* why) {
    graph.notes.push_back(StrCat(option, " makes no difference: ", why));
  };
  for (const auto& [option, names] :
       {std::pair("--freeze", &options.freeze), {"--train-only", &options.train_only}}) {
    if (!names->empty() && !gradients) idle(option, "no gradients are computed");
  }
  if (options.recompute != "none" && !gradients) idle("--recompute", "no gradients are computed");
  if (options.precision.reduce_in == "f32" && !mixed) idle("--reduce-in", "all of it is in f32");
  if (options.optimizer.loss_scale_window != OptimizerOptions().loss_scale_window &&
      !PassesF16(graph, options)) {
    idle("--loss-scale-window", "no gradient passes f16");
  }
}

}  // namespace

void RunPass(Graph& graph, std::string_view name) {
  CanonicalizeShardings(graph);
  RunNamed(graph, name);
}

std::vector<std::string> PassNames() {
  std::vector<std::string> names;
  for (const NamedPass& pass : kPasses) names.emplace_back(pass.name);
  return names;
}

void CompileGraph(Graph& graph, const Spec& spec, const Mesh& mesh,
                  const PipelineOptions& options) {
  Runner run(graph, options);
  SetMesh(graph, mesh);
  Value* loss = nullptr;
  run.Named("canonicalize");
  const auto drop = DropOwnLoss(graph, options.loss, options.drop);
  run("attach_loss", [&] { loss = AttachLoss(graph, options.loss, options.loss_output); });
  DropOutputs(graph, drop);
  FreezeParams(graph, options.freeze, options.train_only);
  const bool gradients = loss && options.gradients;
  // First: what it makes belongs where attention does.
  if (gradients) run.Named("center_masks");
  // On the model as it is: what is made of an op from here on belongs where it does.
  run("assign_stages", [&] { AssignStages(graph, spec, gradients); });
  // The spec comes before differentiation: reshards that it asks for are part of the forward graph,
  // and optimizer state takes the shardings of its parameters.
  run("apply_spec", [&] { ApplySpec(graph, spec); });
  RefuseCutsOverPipeline(graph, spec);
  run.Named("order_axes");
  run.Named("split_params");
  run.Named("split_axes");
  run.Named("infer_layouts");
  run.Named("follow_cuts");
  NoteWhole(graph);
  // The last on the forward graph: what the passes before find in it (splits of weights, layers) is
  // there once. Before differentiation, which sums the gradients of a weight's uses.
  const MicrobatchSpec& micro = spec.microbatches;
  run("microbatches", [&] {
    loss =
        micro.batches ? AccumulateBatches(graph, micro, loss) : CutMicrobatches(graph, micro, loss);
  });
  if (!gradients && !options.optimizer.kind.empty()) throw NoGradients();
  if (gradients) {
    run("differentiate", [&] { AddGradients(graph, loss, GradientScale(graph, options, loss)); });
  }
  // Before reductions are placed: of a sum over stages only one is left.
  run.Named("group_sums");
  Zero zero = ResolveZero(graph, spec, gradients && !options.optimizer.kind.empty());
  // Before the optimizer, whose states and sums of squares follow the parameters.
  run("cut_params", [&] { CutParams(graph, zero); });
  if (gradients) run("optimizer", [&] { AddOptimizer(graph, options.optimizer); });
  // On the serial graph, so that sharding weighs the types that will travel.
  bool mixed = options.precision.compute != "f32" || HasValuesOf(graph, IsHalf);
  NoteIdleOptions(graph, options, gradients, mixed);
  run("precision", [&] { LowerPrecision(graph, options.precision); });
  // After it: what travels is the smaller copy of a parameter.
  run("gather_params", [&] { GatherParams(graph, zero); });
  run("cut_gradients", [&] { CutGradients(graph, zero); });
  // From here on the graph holds forward, backward and update, and one mechanism shards all of it.
  run.Named("propagate");
  run.Named("insert_reshards");
  RestoreAxes(graph, mesh);
  run("optimize_reshards", [&] { OptimizeReshards(graph, zero.stage >= 2); });
  if (options.on_sharded) options.on_sharded(graph);
  run.Named("lower_reshards");
  // Padding first: fused ops must see the cleared operands.
  run.Named("clear_padding");
  run.Named("move_to_readers");
  if (mixed) run.Named("narrow_params");
  // What is held at a time, and with what.
  run.Named("one_by_one");
  run("chunk", [&] { Chunk(graph, options.chunk); });
  // Before what is made again costs more: of that the backward has its own.
  if (gradients && options.recompute.find("full") == std::string::npos) run.Named("make_again");
  // On the lowered graph, where collectives are ops and copies are placed like their originals, but
  // before fusion: the forward's fused op is not what the backward repeats. No later pass merges
  // equal ops.
  if (options.recompute != "none") {
    run.Named("forward_first");
    run("recompute", [&] { Recompute(graph, options.recompute); });
    run.Named("one_by_one");
  }
  run.Named("bucket_reductions");
  if (options.precision.reduce_in == "f32") run.Named("reduce_in_f32");
  // Before and after: a product and its bias must be of one type to be fused, and what was fused
  // may choose its type again.
  if (mixed) run.Named("fold_casts");
  run.Named("fuse");
  if (mixed) run.Named("fold_casts");
  if (mixed) run.Named("narrow_reads");
  if (mixed) run.Named("narrow_params");  // again: biases that are added to what is narrow now
  run.Named("fuse_elementwise");
  // Buckets wait.
  run.Named("one_by_one");
  // Of the order only, once it is known what runs.
  run("run_together", [&] { RunTogether(graph, spec.microbatches); });
  run.Named("overlap");
  // Late: what an op is made of must be on one stage before transfers can be placed.
  run.Named("place_stages");
  run.Named("cast_together");
  run("verify", [&] { run.Verify("the last pass"); });
  run.RefuseToPrintAfterOthers();
}

}  // namespace shardc
