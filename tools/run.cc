#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>

#include "ir/contains.h"
#include "ir/diagnostic.h"
#include "ir/output_file.h"
#include "ir/safetensors.h"
#include "runtime/processes.h"
#include "tools/files.h"
#include "tools/inputs.h"
#include "tools/interrupt.h"
#include "tools/launched.h"
#include "tools/no_memory_exit.h"
#include "tools/number.h"
#include "tools/plan.h"
#include "tools/run_files.h"
#include "tools/run_profile.h"
#include "tools/run_report.h"
#include "tools/run_values.h"
#include "tools/seed.h"
#include "tools/states.h"
#include "tools/verbs.h"

namespace shardc {
namespace {

struct RunOptions {
  std::string plan;
  std::vector<std::string> inputs;
  std::optional<uint64_t> random_seed;
  std::string load, save, save_params, save_checkpoint, check, profile;
  double rtol = 1e-4, atol = 1e-5;
  int steps = 0, repeat = 0, save_interval = 0;
  bool json = false, module_names = false;
  SessionOptions session;
};

int64_t TokensOf(const Session& session) {
  if (!Contains(session.InputNames(), "input_ids")) return 0;
  const TensorType type = session.InputType("input_ids");
  return IsInteger(type.dtype) ? type.num_elements() : 0;
}

// Files that a signal is not to take away.
bool Writes(const RunOptions& o) {
  return !(o.save.empty() && o.save_params.empty() && o.save_checkpoint.empty() &&
           o.profile.empty());
}

// `notes`: for the user, where several processes make the same reader one of them says them.
StateReader ReaderFor(const RunOptions& o, const Plan& plan, std::vector<std::string>* notes) {
  return o.load.empty() ? WeightsReader(plan) : CheckpointReader(plan, o.load, notes);
}

class Run {
 public:
  Run(const RunOptions& o, const SessionOptions& session, const Plan& plan)
      : o_(o),
        plan_(plan),
        processes_(session.processes),
        session_(plan.programs, session, ReaderFor(o, plan, &notes_)),
        inputs_(o.inputs, session_, plan.manifest.loss == "lm"),
        values_(session_, plan.manifest),
        files_(session_, plan.manifest, o.module_names) {
    for (const std::string& note : notes_) std::fprintf(stderr, "note: %s\n", note.c_str());
    inputs_.Set(0, session_);
    if (o.random_seed) FillRandomInputs(StagesOf(plan), *o.random_seed, session_);
    report_.tokens = TokensOf(session_);
  }

  // Returns the signal to end by, or 0.
  int Go() {
    CheckFiles();
    if (Writes(o_)) interrupt_.emplace();
    if (interrupt_ && processes_) processes_->EndWhenAsked();
    NoteEqualSteps();
    files_.NoteLostNames();
    // Without --repeat the reported steps are recorded, the first with what kernels do only once.
    if (o_.repeat == 0) StartProfile(std::max(o_.steps, 1));
    if (o_.steps > 0) {
      Steps();
    } else {
      TimedStep();
    }
    if (steps_run_ == 0) return NoteInterrupt();
    report_.outputs = values_.Scalars();
    // First what took longest to make.
    if (o_.repeat == 0) SaveStates();
    Keep(o_.save, [&] { files_.SaveOutputs(o_.save); });
    if (!o_.check.empty()) golden_ = files_.Differences(o_.check, o_.rtol, o_.atol);
    Repeat();
    if (o_.repeat > 0) SaveStates();
    Keep(o_.profile, [&] { WriteProfile(); });
    if (steps_run_ < inputs_.steps()) {
      std::fprintf(stderr, "note: the inputs hold %lld steps; --steps runs more than %lld\n",
                   static_cast<long long>(inputs_.steps()), static_cast<long long>(steps_run_));
    }
    Report();
    if (not_written_) throw *not_written_;
    if (no_update_) throw *no_update_;
    if (Interrupted()) return NoteInterrupt();
    if (golden_) throw *golden_;
    return 0;
  }

 private:
  // Before the steps: what they make must not be lost to a path.
  void CheckFiles() const {
    // What --load reads may be written: such a run goes on where the one before stopped.
    std::vector<FileOption> files = {{"--save", o_.save, true},
                                     {"--save-params", o_.save_params, true},
                                     {"--save-checkpoint", o_.save_checkpoint, true},
                                     {"--profile", o_.profile, true},
                                     {"--check", o_.check, false}};
    for (const std::string& text : o_.inputs)
      files.push_back({"--input", FileOfInput(text), false});
    files.push_back({"the plan", plan_.folder + "/manifest.textproto", false});
    for (const ManifestFile& f : plan_.manifest.files) {
      files.push_back({"the plan", plan_.folder + "/" + f.path, false});
    }
    CheckApart(files);
    for (const std::string* path : {&o_.save, &o_.save_params, &o_.save_checkpoint, &o_.profile}) {
      if (!path->empty()) WholeFile::Check(*path);
    }
    if (!o_.check.empty()) SafetensorsFile{o_.check};
  }

  // What the run has made takes more than one file: where one cannot be written the others are, and
  // the report.
  template <typename F>
  void Keep(const std::string& path, F write) {
    if (path.empty()) return;
    try {
      write();
    } catch (const Diagnostic& d) {
      if (d.code() != ExitCode::kIo) throw;
      if (!not_written_) not_written_ = d;
    }
  }

  void SaveStates() {
    // A file of before is worth more, unless all that this run changed is the loss scale of it.
    if (no_update_ && updates_ == 0 && !(values_.LossScale() && !o_.load.empty())) return;
    Keep(o_.save_checkpoint, [&] { files_.SaveStates(o_.save_checkpoint); });
    Keep(o_.save_params, [&] { files_.SaveParams(o_.save_params); });
  }

  void NoteEqualSteps() const {
    if (o_.steps <= 1 || values_.Trains() || inputs_.steps() > 1) return;
    std::fprintf(stderr,
                 "note: the plan updates no parameter, so all steps are equal; "
                 "compile with --optimizer\n");
  }

  void TimedStep() {
    if (steps_run_ > 0) inputs_.Set(steps_run_, session_);
    ++steps_run_;
    auto start = std::chrono::steady_clock::now();
    session_.Step();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    report_.times_s.push_back(took.count());
    report_.host_times_s.push_back(session_.host_seconds());
    CheckGradients();
  }

  // A loss that is no number need not be the end (all labels are ignored), such gradients are,
  // unless they are those of a scaled loss, whose scale is halved then.
  void CheckGradients() {
    const auto norm = values_.UpdateNorm();
    if (no_update_ || !norm) return;
    if (std::isfinite(*norm)) {
      ++updates_;
      return;
    }
    const auto scale = values_.LossScale();
    const bool scaled = scale && *scale > 1;
    if (scaled) {
      std::fprintf(stderr, "note: step %lld: gradients of %s times the loss overflow: no update\n",
                   static_cast<long long>(steps_run_), NumberText(*scale).c_str());
    }
    const bool last = steps_run_ >= std::max({o_.steps, o_.repeat + 1, 1});
    if (scaled && !(last && updates_ == 0)) return;
    no_update_ = Diagnostic(
        "E4011", ExitCode::kMismatch, StrCat("step ", steps_run_),
        StrCat("the norm of the gradients is ", std::isnan(*norm) ? "nan" : "inf",
               ": this step changes no parameter, ",
               updates_ > 0 ? "and what is saved is from before it" : "and none before it has"),
        "--check-numerics names the op that makes the first NaN");
  }

  bool Stopped() { return no_update_ || not_written_ || Interrupted(); }

  void Steps() {
    for (int i = 1; i <= o_.steps && !Stopped(); ++i) {
      TimedStep();
      report_.steps.push_back(values_.OfStep());
      if (!o_.json) PrintStep(report_.steps.size(), report_.steps.back());
      const bool last = i == o_.steps || Stopped();
      if (o_.save_interval > 0 && i % o_.save_interval == 0 && !last) {
        Keep(o_.save_checkpoint, [&] { files_.SaveStates(o_.save_checkpoint); });
      }
    }
    if (not_written_) NoteStop("stopped", "its checkpoint could not be written");
  }

  bool Interrupted() {
    if (interrupt_) signal_ = session_.Noted();
    return signal_ != 0;
  }

  void NoteStop(const char* how, const char* then) const {
    const int64_t steps = std::max({o_.steps, o_.repeat + 1, 1});
    std::fprintf(stderr, "note: %s after step %lld of %lld; %s\n", how,
                 static_cast<long long>(steps_run_), static_cast<long long>(steps), then);
  }

  int NoteInterrupt() const {
    NoteStop("interrupted", steps_run_ > 0 ? "what it had made is saved" : "nothing is written");
    std::fflush(stdout);
    return signal_;
  }

  // The first step has made the outputs that are reported; it also was the warm-up.
  void Repeat() {
    if (o_.repeat == 0) return;
    report_.times_s.clear();
    report_.host_times_s.clear();
    StartProfile(o_.repeat);
    for (int i = 0; i == 0 || (i < o_.repeat && !no_update_ && !Interrupted()); ++i) TimedStep();
    if (!o_.profile.empty()) return;
    Profile profile = session_.TakeProfile();
    if (profile.steps() > 0) report_.gemm_share = GemmShare(profile);
  }

  void StartProfile(int steps) {
    // On GPUs it would change what --repeat measures.
    if (o_.profile.empty() && (o_.repeat == 0 || o_.session.backend == "cuda")) return;
    if (!o_.profile.empty()) peaks_ = session_.MeasurePeaks();
    session_.StartProfile(steps);
  }

  void WriteProfile() {
    Profile profile = session_.TakeProfile();
    profile.peaks = peaks_;
    if (o_.repeat > 0 && profile.steps() > 0) report_.gemm_share = GemmShare(profile);
    if (profile.steps() < report_.times_s.size()) {
      std::fprintf(stderr, "note: the profile holds the first %zu of %zu steps\n", profile.steps(),
                   report_.times_s.size());
    }
    std::fputs(ProfileTables(profile).c_str(), stderr);
    WriteTrace(profile, o_.profile);
  }

  void Report() {
    report_.peak_bytes = session_.peak_bytes();
    report_.collective_bytes = session_.collective_bytes();
    report_.gpu_memory = session_.gpu_memory();
    if (o_.repeat > 0) PrintTimes(report_);
    if (o_.json) {
      PrintRunJson(report_);
    } else {
      PrintRunText(report_);
    }
  }

  const RunOptions& o_;
  const Plan& plan_;
  std::vector<std::string> notes_;
  Processes* const processes_;
  std::optional<Interrupt> interrupt_;  // outlives the session, which other processes take part in
  Session session_;
  GivenInputs inputs_;
  const RunValues values_;
  const RunFiles files_;
  int64_t steps_run_ = 0, updates_ = 0;
  int signal_ = 0;
  RunReport report_;
  MachinePeaks peaks_;
  std::optional<Diagnostic> not_written_, no_update_, golden_;  // to throw after the report
};

void CheckOptions(const RunOptions& o) {
  if (o.module_names && o.save.empty() && o.save_params.empty() && o.save_checkpoint.empty()) {
    throw Diagnostic("E6100", ExitCode::kUsage, "--module-names", "no file is written",
                     "add --save, --save-params or --save-checkpoint, or leave it out");
  }
  bool cuda = o.session.backend == "cuda";
  for (auto [given, flag] : {std::pair(o.session.shared_device, "--shared-device"),
                             std::pair(o.session.may_vary, "--fast-nondeterministic")}) {
    if (!given || cuda) continue;
    throw Diagnostic("E6120", ExitCode::kUsage, flag, "it is for GPUs only",
                     "add --backend cuda, or leave it out");
  }
  if (o.session.shared_device && StartedByMpi()) {
    throw Diagnostic("E4326", ExitCode::kUsage, "--shared-device",
                     "one process drives all ranks on a GPU, and mpirun started this one",
                     "run without mpirun, or with a GPU for each process");
  }
}

void RunPlan(const RunOptions& o) {
  CheckOptions(o);
  const SignalsApart signals;
  SessionOptions session = o.session;
  if (Writes(o)) session.noted = Interrupt::Noted;
  auto run = [&o](const Plan& plan, const SessionOptions& options) {
    NameExitOfLibraries();
    return Run(o, options, plan).Go();
  };
  if (StartedByMpi()) {
    auto states = [&o](const Plan& plan) {
      std::vector<std::string> said_by_the_first;
      LaunchedStates read{ReaderFor(o, plan, &said_by_the_first), "", ""};
      if (!o.load.empty()) read.from = "--load " + o.load, read.gist = GistOf(o.load);
      return read;
    };
    RunLaunched(o.plan, session, states, run);
  }
  const int signal = run(LoadPlan(o.plan), session);
  if (signal != 0) EndBySignal(signal);
}

}  // namespace

void AddRunVerb(CLI::App& app) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* verb =
      app.add_subcommand("run", "run a plan: all its ranks here, or one in each process of mpirun");
  // CLI11's own names the largest double.
  auto not_negative = [](const std::string& text) {
    return std::strtod(text.c_str(), nullptr) >= 0 ? "" : text + " is not a number from 0 on";
  };
  verb->add_option("plan", o->plan, "folder that compile wrote")->required();
  verb->add_option(
      "--input", o->inputs,
      "name=@file.npy or name=@file.safetensors[:tensor]; with one more dim in front, the "
      "values of so many steps");
  verb->add_option("--random-inputs", o->random_seed,
                   "fill inputs that are not given from this seed, a whole number from 0 on")
      ->check(IsSeed<uint64_t>);
  verb->add_option("--save", o->save, "write all outputs, whole, to this safetensors file");
  verb->add_option("--save-params", o->save_params, "write the parameters after the last step");
  auto* checkpoint =
      verb->add_option("--save-checkpoint", o->save_checkpoint,
                       "write parameters and the optimizer's states after the last step");
  verb->add_flag("--module-names", o->module_names,
                 "save under the names and in the layout that the PyTorch module has, where the "
                 "exporter renamed and transposed a tensor");
  verb->add_option("--load", o->load,
                   "begin with the parameters of this safetensors file (or index of several, or "
                   "folder of model.safetensors), and with the optimizer's states where it has "
                   "them, instead of the plan's");
  auto* check = verb->add_option(
      "--check", o->check, "compare outputs with this safetensors file; exit 7 if they differ");
  verb->add_option("--rtol", o->rtol, "relative tolerance of --check")
      ->capture_default_str()
      ->check(not_negative)
      ->needs(check);
  verb->add_option("--atol", o->atol, "absolute tolerance of --check")
      ->capture_default_str()
      ->check(not_negative)
      ->needs(check);
  auto* steps =
      verb->add_option("--steps", o->steps, "training steps; loss and gradient norm of each");
  const CLI::Range some(1, std::numeric_limits<int>::max());
  steps->check(some);
  verb->add_option("--save-interval", o->save_interval,
                   "write the checkpoint after every so many steps, too")
      ->check(some)
      ->needs(steps)
      ->needs(checkpoint);
  verb->add_option("--repeat", o->repeat, "time this many steps after the first one")
      ->check(some)
      ->excludes(steps);
  verb->add_option("--profile", o->profile,
                   "write a trace of the timed steps for Perfetto here; tables on stderr");
  verb->add_flag("--json", o->json, "one JSON object on stdout");
  verb->add_option("--backend", o->session.backend, "cpu or cuda")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  verb->add_flag("--shared-device", o->session.shared_device,
                 "cuda: all ranks on one GPU, instead of one GPU for each");
  verb->add_flag("--fast-nondeterministic", o->session.may_vary,
                 "cuda: take kernels whose sums differ in the last bits from run to run where they "
                 "are faster (attention's backward)");
  verb->add_option("--threads", o->session.threads,
                   "of all ranks together; the cores of the process without it")
      ->check(CLI::Range(1, 1024));
  verb->add_flag("--reference", o->session.reference_kernels,
                 "naive kernels instead of the fast ones");
  verb->add_flag("--check-numerics", o->session.check_numerics,
                 "stop at the first instruction that makes a NaN");
  verb->callback([o] {
    o->session.cache_folder = o->plan;
    RunPlan(*o);
  });
}

}  // namespace shardc
