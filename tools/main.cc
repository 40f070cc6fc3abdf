#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ir/choices.h"
#include "ir/contains.h"
#include "ir/diagnostic.h"
#include "ir/no_memory.h"
#include "runtime/processes.h"
#include "tools/malloc.h"
#include "tools/no_memory_exit.h"
#include "tools/verbs.h"

namespace shardc {
namespace {

// What is wrong with the command line is the same in all processes of a launch.
bool SpeaksForAll() { return LaunchedRank() == 0; }

// Open MPI 5 ends all processes as soon as one has: the silent ones wait for the one that speaks.
ExitCode AfterRankZero(ExitCode code) {
  if (!SpeaksForAll()) std::this_thread::sleep_for(std::chrono::seconds(2));
  return code;
}

// A value left empty, as a shell's variable is that was never set, would pass for an option that is
// not given, or for zero: --check '' for a check that found nothing.
void RefuseEmptyValues(CLI::App& app) {
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) {
    for (CLI::Option* option : verb->get_options()) {
      if (option->get_items_expected_max() == 0) continue;
      option->check([](const std::string& text) {
        return text.empty() ? std::string("a value is missing") : std::string();
      });
    }
  }
}

// The same of options that need no value, which CLI11 then takes for given without one, and before
// checks that say something else of it.
void RefuseEmptyArguments(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    const std::string_view before = argv[i - 1], text = argv[i];
    const bool left_empty = text.empty() && before.starts_with("--");
    const bool joined = text.starts_with("--") && text.find('=') == text.size() - 1;
    if (!left_empty && !joined) continue;
    const std::string option(left_empty ? before : text.substr(0, text.size() - 1));
    throw CLI::ValidationError(option, "a value is missing");
  }
}

// CLI11 says only that a verb is missing.
void RefuseUnknownVerb(CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; })) {
    verbs.push_back(verb->get_name());
  }
  const std::string given = argv[1];
  if (Contains(verbs, given)) return;
  throw Diagnostic("E6112", ExitCode::kUsage, "shardc", StrCat("there is no verb '", given, "'"),
                   Choices(given, "verbs", verbs));
}

// "--mseh: did you mean '--mesh'? ", of the first option that the verb does not know, if one is
// near.
std::string NearOption(const CLI::App& verb) {
  std::vector<std::string> options;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  }
  for (const std::string& given : verb.remaining()) {
    if (!given.starts_with("--")) continue;
    const std::string name = given.substr(0, given.find('=')), near = DidYouMean(name, options);
    return near.empty() ? "" : StrCat(name, ": ", near, " ");
  }
  return "";
}

// CLI11's own words, in the form of all errors.
Diagnostic WrongUse(const CLI::App& app, const CLI::ParseError& e) {
  const std::vector<CLI::App*> verbs = app.get_subcommands();
  const std::string command = verbs.empty() ? "shardc" : "shardc " + verbs[0]->get_name();
  const std::string near = verbs.empty() ? "" : NearOption(*verbs[0]);
  return Diagnostic("E6100", ExitCode::kUsage, command, e.what(),
                    StrCat(near, "`", command, " --help` says what it takes"));
}

int Main(int argc, char** argv) {
  CLI::App app("shardc: compiles a serial model into one program per rank, and runs them");
  app.require_subcommand(1);
  app.set_version_flag("--version", "shardc 0.1.0");
  AddCompileVerb(app);
  AddRunVerb(app);
  AddDumpVerb(app);
  AddOptVerb(app);
  AddMeshVerb(app);
  RefuseEmptyValues(app);
  RefuseUnknownVerb(app, argc, argv);
  try {
    RefuseEmptyArguments(argc, argv);
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) throw WrongUse(app, e);
    std::ostringstream unheard;
    SpeaksForAll() ? app.exit(e) : app.exit(e, unheard, unheard);
  }
  std::cout.flush();
  if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Diagnostic("E5003", ExitCode::kIo, "standard output", "cannot be written in full");
  }
  return 0;
}

}  // namespace
}  // namespace shardc

int main(int argc, char** argv) {
  using shardc::ExitCode;
  shardc::CacheFreedMemory();
  shardc::NameTerminationWithoutMemory();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grew too large is an error of that file
  try {
    shardc::LoadUnwinder();
    return shardc::Main(argc, argv);
  } catch (const shardc::Diagnostic& d) {
    const bool of_all = d.code() == ExitCode::kUsage;
    if (!of_all || shardc::SpeaksForAll()) {
      std::fprintf(stderr, "shardc: error %s\n", d.what());
    }
    return static_cast<int>(of_all ? shardc::AfterRankZero(d.code()) : d.code());
  } catch (const std::exception& e) {
    if (shardc::IsNoMemory(e)) {
      std::fprintf(stderr, "shardc: error %s\n", shardc::kNoMemory);
      return static_cast<int>(ExitCode::kMemory);
    }
    std::fprintf(stderr, "shardc: %s\n", e.what());
    return static_cast<int>(ExitCode::kInternal);
  }
}
