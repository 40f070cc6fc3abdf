#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>

#include "frontend/annotations.h"
#include "frontend/gpt_config.h"
#include "ir/diagnostic.h"
#include "ir/text.h"
#include "passes/check_programs.h"
#include "passes/emit.h"
#include "passes/pipeline.h"
#include "passes/placement.h"
#include "passes/plan_folder.h"
#include "passes/write_plan.h"
#include "specs/annotations.h"
#include "tools/compile_report.h"
#include "tools/files.h"
#include "tools/interrupt.h"
#include "tools/model.h"
#include "tools/seed.h"
#include "tools/verbs.h"

namespace shardc {
namespace {

struct CompileOptions {
  std::string model, spec = "serial", mesh, out, weights = "split", annotate;
  ModelOptions binding;
  PipelineOptions pipeline;
  std::vector<double> betas;
  std::optional<double> eps;
  std::optional<int> zero, microbatches, accumulate, together, virtual_stages;
  bool no_gradients = false, no_dropout = false;
  bool quiet = false;
};

class Timer {
 public:
  explicit Timer(bool on) : on_(on) {}
  void Lap(const char* what) {
    auto now = std::chrono::steady_clock::now();
    if (on_) {
      std::fprintf(stderr, "%10.2f ms  %s\n",
                   std::chrono::duration<double, std::milli>(now - last_).count(), what);
    }
    last_ = now;
  }

 private:
  bool on_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

void Check(const StagePrograms& programs) {
  std::vector<const Program*> bodies;
  for (const Program& p : programs.stages) bodies.push_back(&p);
  std::vector<int> body_of;
  for (int64_t r = 0; r < programs.stages[0].mesh.num_ranks(); ++r) {
    body_of.push_back(static_cast<int>(programs.StageOf(r)));
  }
  CheckProgramBodies(bodies, body_of);
}

bool IsOnnx(const std::string& model) { return !IsBuiltin(model) && !model.ends_with(".shardc"); }

// A shipped spec, a file, or "onnx", "onnx:NAME": what the model's own annotations say.
Spec LoadSpecFor(const CompileOptions& o, const Mesh& given) {
  constexpr std::string_view kOnnx = "onnx";
  if (!o.spec.starts_with(kOnnx) || (o.spec != kOnnx && o.spec[kOnnx.size()] != ':')) {
    return LoadSpec(o.spec);
  }
  std::vector<DeviceConfiguration> have;
  if (IsOnnx(o.model)) have = ReadAnnotations(o.model);
  const std::string name = o.spec == kOnnx ? "" : o.spec.substr(kOnnx.size() + 1);
  const DeviceConfiguration& chosen = ChooseConfiguration(have, name, o.model);
  if (chosen.has_stages) {
    std::fprintf(stderr, "note: the pipeline stages of configuration '%s' are not read\n",
                 chosen.name.c_str());
  }
  return SpecOfAnnotations(chosen, o.model, given);
}

// On Ctrl-C nothing is left of the plan.
void WriteInterruptibly(const Graph& graph, const StagePrograms& programs, PlanOptions& plan,
                        const std::string& folder) {
  try {
    const Interrupt interrupt;
    plan.on_way = [&] { interrupt.Check(); };
    WritePlan(graph, programs, plan, folder);
    interrupt.Check();
  } catch (const Interrupted& i) {
    EndBySignal(i.signal);
  }
}

void CheckForOnnx(const CompileOptions& o, const std::string& option, const std::string& value) {
  if (value.empty() || IsOnnx(o.model)) return;
  throw Diagnostic("E6111", ExitCode::kUsage, StrCat(option, " ", value),
                   StrCat("is for ONNX files, and ", o.model, " is none"),
                   StrCat("give an ONNX file, or leave ", option, " out"));
}

// The annotated model is written in the place of what is there, which may be the model.
void CheckAnnotated(const CompileOptions& o) {
  if (o.annotate.empty()) return;
  CheckApart({{"--annotate", o.annotate, true},
              {"--spec", o.spec, false},
              {"--module", o.binding.module, false}});
  if (!IsInside(o.annotate, o.out)) return;
  throw Diagnostic("E6121", ExitCode::kUsage, "--annotate " + o.annotate,
                   "is in the folder of the plan, which holds nothing else", "give another folder");
}

void Annotate(Graph& graph, const Placements& placement, const CompileOptions& o) {
  WriteAnnotated(o.model, placement.configuration, o.annotate);
  const std::vector<std::string>& untold = placement.untold;
  if (untold.empty()) return;
  graph.notes.push_back(StrCat("ONNX has no words for how ", untold.size(),
                               " parameters are cut, '", untold[0], "' the first: ", o.annotate,
                               " says nothing of them, and gives another plan"));
}

void SetOptimizer(CompileOptions& o) {
  OptimizerOptions& optimizer = o.pipeline.optimizer;
  if (optimizer.kind == "sgd" && (!o.betas.empty() || o.eps)) {
    const bool betas = !o.betas.empty();
    throw Diagnostic("E6102", ExitCode::kUsage, betas ? "--betas" : "--eps",
                     betas ? "betas are adamw's" : "eps is adamw's",
                     betas ? "leave them out, or give sgd's --momentum" : "leave it out");
  }
  if (!o.betas.empty()) {
    optimizer.beta1 = o.betas[0];
    optimizer.beta2 = o.betas[1];
  }
  if (o.eps) optimizer.eps = *o.eps;
}

// What the command line says holds, whatever the spec says.
void Override(Spec& spec, const CompileOptions& o) {
  auto set = [](const auto& given, auto& value, std::string& where, const char* flag) {
    if (!given) return;
    value = *given;
    where = flag;
  };
  set(o.zero, spec.zero.stage, spec.zero.where, "--zero");
  set(o.microbatches, spec.microbatches.count, spec.microbatches.where, "--microbatches");
  set(o.accumulate, spec.microbatches.count, spec.microbatches.where, "--accumulate");
  spec.microbatches.batches = o.accumulate.has_value();
  set(o.together, spec.microbatches.together, spec.microbatches.together_where,
      "--microbatches-together");
  set(o.virtual_stages, spec.pipeline.virtual_stages, spec.pipeline.virtual_stages_where,
      "--virtual-stages");
}

void RunCompile(CompileOptions& o) {
  CheckForOnnx(o, "--annotate", o.annotate);
  CheckForOnnx(o, "--module", o.binding.module);
  CheckAnnotated(o);
  CheckPlanFolder(o.out);
  SetOptimizer(o);
  o.pipeline.gradients = !o.no_gradients;
  o.binding.dropout.keep = !o.no_dropout;
  o.pipeline.log = &std::cerr;
  Timer timer(o.pipeline.timing);
  const Mesh given = Mesh::Parse(o.mesh);
  Spec spec = LoadSpecFor(o, given);
  Override(spec, o);
  FixedTensors fixed;
  Graph graph = LoadModel(o.model, o.binding, fixed);
  // A graph in text form may bring a mesh.
  const Mesh mesh = MeshFor(spec, given.num_axes() > 0 ? given : graph.mesh);
  timer.Lap("load model");
  Placements placement;
  if (!o.annotate.empty()) {
    o.pipeline.on_sharded = [&](const Graph& g) {
      placement = DescribePlacement(g, StrCat(o.spec, " ", g.mesh.ToString()));
    };
  }
  CompileGraph(graph, spec, mesh, o.pipeline);
  timer.Lap("passes");
  if (!o.annotate.empty() && !graph.pipeline_axis.empty()) {
    throw Diagnostic("E6111", ExitCode::kUsage, "--annotate " + o.annotate,
                     "pipeline stages are not written as annotations",
                     "compile for a mesh without axis '" + graph.pipeline_axis + "'");
  }
  const StagePrograms programs = EmitStages(graph);
  timer.Lap("emit and plan memory");
  Check(programs);
  timer.Lap("check programs");
  PlanOptions plan;
  plan.model = o.model;
  plan.spec = spec.name;
  plan.loss = o.pipeline.loss;
  plan.fixed = std::move(fixed);
  plan.write_weights = o.weights == "split";
  if (!o.annotate.empty()) Annotate(graph, placement, o);
  // Who is told that this is not the plan that was meant need not wait for it.
  WarnOfIdleAxes(programs, spec);
  if (!o.quiet) PrintNotes(graph, programs);
  WriteInterruptibly(graph, programs, plan, o.out);
  timer.Lap("write plan");
  if (!o.quiet) Summarise(graph, programs, o.out);
}

void AddModelOptions(CLI::App* verb, CompileOptions* o) {
  verb->add_option(
          "model", o->model,
          "an ONNX file, builtin:NAME (gpt2, gpt3-175b, gpt?layers=2,...), or a .shardc graph")
      ->required();
  verb->add_option(
          "--spec", o->spec,
          StrCat("a shipped spec (", Join(ShippedSpecs(), ", "), "), a file, or onnx[:NAME]: the ",
                 "annotations for several devices that the model carries"))
      ->capture_default_str();
  verb->add_option("--annotate", o->annotate,
                   "also write the ONNX model to this file, with annotations that say where each "
                   "tensor lies");
  verb->add_option(
      "--module", o->binding.module,
      "what safetensors.torch.save_model or save_pretrained wrote of the PyTorch module: "
      "parameters that the exporter renamed, transposed or folded are found by their data, and are "
      "the module's own again");
  verb->add_option("--mesh", o->mesh, "mesh axes, major to minor: dp=1,tp=2");
  verb->add_option("--bind", o->binding.bind, "sizes of the model's symbols: batch=2,sequence=32")
      ->delimiter(',');
  verb->add_option("--shape", o->binding.shapes, "shape of an input: input_ids=2x32")
      ->delimiter(',');
}

void AddTrainingOptions(CLI::App* verb, CompileOptions* o) {
  verb->add_option("--loss", o->pipeline.loss, "lm, ce, masked_lm, dot, none or output:NAME")
      ->capture_default_str();
  verb->add_option("--loss-output", o->pipeline.loss_output, "the output that the loss is of");
  verb->add_option(
          "--drop", o->pipeline.drop,
          "outputs of the model that the plan does not give (logits, present.*), so that their "
          "memory is free after use")
      ->delimiter(',');
  verb->add_flag("--no-gradients", o->no_gradients, "forward and loss only");
  verb->add_option("--freeze", o->pipeline.freeze,
                   "parameters that get no gradient and no update, by name: *.wte.*")
      ->delimiter(',');
  verb->add_option("--train-only", o->pipeline.train_only,
                   "the only ones that do, by name: *lora_*")
      ->delimiter(',');
  verb->add_option("--dropout-seed", o->binding.dropout.seed,
                   "another seed of what the model draws (dropout, noise)")
      ->check(IsSeed<int64_t>);
  verb->add_flag("--no-dropout", o->no_dropout, "drop nothing, as in evaluation")
      ->excludes("--dropout-seed");
}

void AddOptimizerOptions(CLI::App* verb, CompileOptions* o) {
  OptimizerOptions& opt = o->pipeline.optimizer;
  CLI::Option* optimizer =
      verb->add_option("--optimizer", opt.kind, "adamw or sgd; none without it");
  auto of_optimizer = [&](const char* name, auto& value, const char* what) {
    return verb->add_option(name, value, what)->capture_default_str()->needs(optimizer);
  };
  of_optimizer("--lr", opt.rate.lr, "learning rate");
  of_optimizer("--lr-warmup-steps", opt.rate.warmup_steps,
               "the rate grows from 0 over so many steps");
  of_optimizer("--lr-decay", opt.rate.decay, "constant, linear or cosine");
  of_optimizer("--lr-decay-steps", opt.rate.decay_steps,
               "the step, warm-up included, from which the rate is --min-lr");
  of_optimizer("--min-lr", opt.rate.min_lr, "where the decay ends");
  of_optimizer("--betas", o->betas, "adamw's betas")
      ->delimiter(',')
      ->expected(2)
      ->default_str("0.9,0.999");
  of_optimizer("--eps", o->eps, "adamw's eps")->default_str("1e-08");
  of_optimizer("--momentum", opt.momentum, "sgd's momentum");
  of_optimizer("--weight-decay", opt.weight_decay, "on parameters with two or more dims");
  of_optimizer("--clip-norm", opt.clip_norm, "clip gradients to this global norm; 0: do not");
  of_optimizer("--loss-scale-window", opt.loss_scale_window,
               "in f16 the loss scale, which overflows halve, doubles again after so many steps "
               "without one");
}

void AddScheduleOptions(CLI::App* verb, CompileOptions* o) {
  verb->add_option("--zero", o->zero,
                   "ZeRO over the axes that cut the batch, or that the spec names. 1: the "
                   "optimizer's states, gradients and "
                   "master weights are cut; 2: gradients already in each microbatch; 3: parameters "
                   "are gathered again for the backward; 0: none, whatever the spec says")
      ->check(CLI::Range(0, 3));
  CLI::Option* pieces =
      verb->add_option("--microbatches", o->microbatches,
                       "run the batch in so many equal pieces, one after the other, and sum their "
                       "gradients before the update; whatever the spec says")
          ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  verb->add_option("--accumulate", o->accumulate,
                   "run so many batches of the model's size, one after the other, before the "
                   "update: each has its own loss, and loss and gradients are their means; inputs "
                   "hold all of them")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()))
      ->excludes(pieces);
  verb->add_option("--microbatches-together", o->together,
                   "how many of them run beside each other, so that one computes while what "
                   "another sends travels; whatever the spec says")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  verb->add_option("--virtual-stages", o->virtual_stages,
                   "of a pipeline: how many runs of layers each stage has, so that it waits less "
                   "and sends more; whatever the spec says")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  verb->add_option(
          "--precision", o->pipeline.precision.compute,
          "f32, or products and attention in bf16 or f16; norms, losses and what an optimizer "
          "updates stay f32")
      ->capture_default_str();
  verb->add_option("--reduce-in", o->pipeline.precision.reduce_in,
                   "f32: sums over ranks travel in f32; without it in the type of --precision");
  verb->add_option("--recompute", o->pipeline.recompute,
                   "what the backward makes again instead of keeping it: none; selective: what "
                   "costs little; gathers: what was gathered from other ranks; "
                   "selective,gathers; full: all of each layer but its input")
      ->capture_default_str();
}

void AddPlanOptions(CLI::App* verb, CompileOptions* o) {
  verb->add_option("--weights", o->weights,
                   "split: write each rank's weights; none: do not touch any")
      ->capture_default_str()
      ->check(CLI::IsMember({"split", "none"}));
  verb->add_option("-o,--output", o->out, "folder of the plan")->required();
  verb->add_option("--print-after", o->pipeline.print_after,
                   "print the graph after these passes (all)")
      ->delimiter(',');
  verb->add_flag("--verify-each", o->pipeline.verify_each, "verify the graph after every pass");
  verb->add_flag("--timing", o->pipeline.timing, "time of every pass on stderr");
  verb->add_flag("-q,--quiet", o->quiet, "no summary");
}

}  // namespace

void AddCompileVerb(CLI::App& app) {
  auto o = std::make_shared<CompileOptions>();
  CLI::App* verb =
      app.add_subcommand("compile", "compile a serial model into one program per rank");
  AddModelOptions(verb, o.get());
  AddTrainingOptions(verb, o.get());
  AddOptimizerOptions(verb, o.get());
  AddScheduleOptions(verb, o.get());
  AddPlanOptions(verb, o.get());
  verb->callback([o] { RunCompile(*o); });
}

}  // namespace shardc
