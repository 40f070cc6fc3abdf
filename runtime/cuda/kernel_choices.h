// Which of several ways a kernel takes, remembered so that a plan takes the same in every run: else
// two runs would differ in the last bits.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace shardc::cuda {

// By a key that names all that the choice depends on (GPU, library version, shapes, types), opaque
// bytes. As text: a line that names the format, then "key <tab> bytes in hex <tab> checksum" lines.
class KernelChoices {
 public:
  // Leaves out what is damaged; all of it when the format is another.
  static KernelChoices Parse(std::string_view text);
  std::string ToText() const;  // sorted by key

  // Whether those that are not known may be found by timing.
  bool may_measure = false;

  std::optional<std::string> Find(const std::string& key) const;
  // `key` has no tabs and newlines.
  void Set(const std::string& key, std::string bytes);

 private:
  std::map<std::string, std::string> choices_;
};

// The choices in a file, with leave to measure where they can be kept there: a path without a file
// gives none, an empty path none and no leave.
KernelChoices ReadChoices(const std::string& path);
// Replaces the file at once; one that cannot be written stays as it is.
void WriteChoices(const KernelChoices& choices, const std::string& path);

}  // namespace shardc::cuda
