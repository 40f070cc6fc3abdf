#include "passes/plan_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "ir/diagnostic.h"
#include "ir/file_error.h"
#include "ir/manifest.h"
#include "ir/output_file.h"

namespace shardc {
namespace {

namespace fs = std::filesystem;

Diagnostic InTheWay(const std::string& folder, const std::string& what) {
  return Diagnostic("E5002", ExitCode::kIo, folder, what, "choose another folder, or remove it");
}

// rank0003.program, with at least one digit.
bool IsRankFile(std::string_view name, std::string_view suffix) {
  if (!name.starts_with("rank") || !name.ends_with(suffix)) return false;
  if (name.size() <= 4 + suffix.size()) return false;
  name = name.substr(4, name.size() - 4 - suffix.size());
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Refuses to throw away what compile did not write.
void CheckReplaceable(const fs::path& target, const std::string& shown) {
  auto status = fs::status(target);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) throw InTheWay(shown, "is there and is not a folder");
  if (fs::is_empty(target)) return;
  if (!fs::exists(target / "manifest.textproto")) {
    throw InTheWay(shown, "is a folder with files in it, and not a plan");
  }
  for (const auto& entry : fs::directory_iterator(target)) {
    std::string name = entry.path().filename().string();
    if (name == "manifest.textproto" || name == "graph.shardc" || IsRankFile(name, ".program") ||
        name.starts_with(kKernelChoicesFile)) {
      continue;
    }
    if (name != "weights" || !entry.is_directory()) {
      throw InTheWay(shown,
                     StrCat("the plan there also holds '", name, "', which is not part of it"));
    }
    for (const auto& shard : fs::directory_iterator(entry.path())) {
      std::string file = shard.path().filename().string();
      if (IsRankFile(file, ".safetensors")) continue;
      throw InTheWay(
          shown, StrCat("the plan there also holds 'weights/", file, "', which is not part of it"));
    }
  }
}

// The plan takes the place of the whole folder, and who runs in it would stay in one that is gone.
void CheckNotAround(const fs::path& target, const std::string& shown) {
  std::error_code error;
  fs::path at = fs::current_path(error);
  for (; !error && at.has_relative_path(); at = at.parent_path()) {
    std::error_code apart;
    if (!fs::equivalent(at, target, apart)) continue;
    throw Diagnostic("E6121", ExitCode::kUsage, "--output " + shown,
                     "is the folder that this command runs in, or one around it, and a plan takes "
                     "the place of its whole folder",
                     "name a folder in it: --output plan");
  }
}

// As the user wrote it, but for slashes at its end.
std::string Shown(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

// Where the folder is, which may be replaced.
fs::path TargetOf(const std::string& shown) {
  if (shown.empty()) throw InTheWay("--output", "names no folder");
  std::error_code error;
  const fs::path target = fs::weakly_canonical(fs::absolute(shown), error);
  if (error) throw CannotWrite(shown, error.value());
  CheckNotAround(target, shown);
  try {
    CheckReplaceable(target, shown);
  } catch (const fs::filesystem_error& e) {
    throw CannotWrite(shown, e.code().value());
  }
  if (target.filename().empty()) throw InTheWay(shown, "cannot be replaced");
  return target;
}

}  // namespace

void CheckPlanFolder(const std::string& folder) { TargetOf(Shown(folder)); }

PlanFolder::PlanFolder(const std::string& folder)
    : shown_(Shown(folder)), target_(TargetOf(shown_)) {
  std::error_code error;
  MakeParents();
  RemoveStaleBeside(target_.string());
  hidden_ = HiddenBeside(target_.string());
  fs::remove_all(hidden_, error);
  if (!fs::create_directory(hidden_, error)) {
    for (auto it = made_.rbegin(); it != made_.rend(); ++it) rmdir(it->c_str());
    throw CannotWrite(shown_, error.value());
  }
}

PlanFolder::~PlanFolder() {
  std::error_code ignored;
  fs::remove_all(hidden_, ignored);
  if (committed_) return;
  for (auto it = made_.rbegin(); it != made_.rend(); ++it) rmdir(it->c_str());
}

void PlanFolder::MakeParents() {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path p = target_.parent_path(); !fs::exists(p, error) && p.has_relative_path();
       p = p.parent_path()) {
    if (error) break;
    missing.push_back(p);
  }
  for (auto it = missing.rbegin(); it != missing.rend(); ++it) {
    if (fs::create_directory(*it, error)) made_.push_back(*it);
    if (!error) continue;
    for (auto m = made_.rbegin(); m != made_.rend(); ++m) rmdir(m->c_str());
    throw CannotWrite(shown_, error.value());
  }
}

void PlanFolder::Commit() {
  auto fail = [&] { return CannotWrite(shown_, errno); };
  if (rename(hidden_.c_str(), target_.c_str()) != 0) {
    if (errno != ENOTEMPTY && errno != EEXIST) throw fail();
    // A plan is there: the two names change places at once, and the destructor removes the old one.
    if (renameat2(AT_FDCWD, hidden_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
      if (errno != EINVAL && errno != ENOSYS) throw fail();
      std::string old = hidden_ + ".old";
      if (rename(target_.c_str(), old.c_str()) != 0) throw fail();
      if (rename(hidden_.c_str(), target_.c_str()) != 0) {
        Diagnostic d = fail();
        rename(old.c_str(), target_.c_str());
        throw d;
      }
      hidden_ = old;
    }
  }
  committed_ = true;
}

}  // namespace shardc
