// A folder that appears all at once or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace shardc {

// Throws Diagnostic E5002 when something that is not a plan (or an empty folder) has the name, or a
// plan holds files that `compile` did not write; E6121 when the process runs in the folder.
void CheckPlanFolder(const std::string& folder);

// Gives a hidden folder beside the target to write into; Commit gives it the target's name. Without
// Commit the destructor removes it and whatever was made for it.
class PlanFolder {
 public:
  // Throws as CheckPlanFolder; Diagnostic E5003 when the hidden folder cannot be made.
  explicit PlanFolder(const std::string& folder);
  ~PlanFolder();
  PlanFolder(const PlanFolder&) = delete;
  PlanFolder& operator=(const PlanFolder&) = delete;

  const std::string& path() const { return hidden_; }
  // Throws Diagnostic E5003.
  void Commit();

 private:
  void MakeParents();

  std::string shown_;  // as the user wrote it
  std::filesystem::path target_;
  std::string hidden_;
  std::vector<std::filesystem::path> made_;  // parents, outermost first
  bool committed_ = false;
};

}  // namespace shardc
