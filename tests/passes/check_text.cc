#include "tests/passes/check_text.h"

#include <gtest/gtest.h>

#include <vector>

#include "ir/text.h"
#include "ir/verifier.h"
#include "passes/pipeline.h"

namespace shardc::testing {
namespace {

std::vector<std::string_view> Split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (true) {
    size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view Trim(std::string_view text) {
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

size_t NameLength(std::string_view text) {
  size_t end =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.", 1);
  return end == std::string_view::npos ? text.size() : end;
}

bool MatchesHere(std::string_view line, std::string_view pattern) {
  while (!pattern.empty()) {
    if (pattern.starts_with("%_") && line.starts_with('%')) {
      line.remove_prefix(NameLength(line));
      pattern.remove_prefix(2);
    } else if (!line.empty() && line[0] == pattern[0]) {
      line.remove_prefix(1);
      pattern.remove_prefix(1);
    } else {
      return false;
    }
  }
  return true;
}

bool Holds(std::string_view line, std::string_view pattern) {
  for (size_t at = 0; at < line.size(); ++at) {
    if (MatchesHere(line.substr(at), pattern)) return true;
  }
  return false;
}

class Matcher {
 public:
  explicit Matcher(const std::string& text) : text_(text), lines_(Split(text, '\n')) {}

  void Run(std::string_view checks) {
    int count = 0;
    for (std::string_view check : Split(checks, '\n')) {
      check = Trim(check);
      if (check.empty()) continue;
      ++count;
      if (!Line(check)) return;
    }
    EXPECT_GT(count, 0) << "no CHECK line";
    Absent(lines_.size());
  }

 private:
  bool Fail(std::string_view check, std::string_view why) {
    ADD_FAILURE() << check << "\n" << why << " after line " << next_ << " of\n" << text_;
    return false;
  }

  bool Line(std::string_view check) {
    auto argument = [&](std::string_view key) { return Trim(check.substr(key.size())); };
    if (check.starts_with("CHECK-NOT:")) {
      absent_.push_back(argument("CHECK-NOT:"));
      return true;
    }
    if (check.starts_with("CHECK-NEXT:")) {
      if (next_ >= lines_.size() || !Holds(lines_[next_], argument("CHECK-NEXT:"))) {
        return Fail(check, "is not the line");
      }
      ++next_;
      return true;
    }
    if (!check.starts_with("CHECK:")) return Fail(check, "is not a CHECK line");
    size_t at = next_;
    while (at < lines_.size() && !Holds(lines_[at], argument("CHECK:"))) ++at;
    if (at == lines_.size()) return Fail(check, "is on no line");
    bool good = Absent(at);
    next_ = at + 1;
    return good;
  }

  bool Absent(size_t end) {
    bool good = true;
    for (std::string_view pattern : absent_) {
      for (size_t at = next_; at < end; ++at) {
        if (Holds(lines_[at], pattern)) good = Fail(pattern, "must not be");
      }
    }
    absent_.clear();
    return good;
  }

  const std::string& text_;
  std::vector<std::string_view> lines_;
  std::vector<std::string_view> absent_;
  size_t next_ = 0;  // the line after the last match
};

}  // namespace

void CheckText(const std::string& text, std::string_view checks) { Matcher(text).Run(checks); }

Graph ParseAndVerify(std::string_view text) {
  Graph graph = ParseGraph(text, "test");
  VerifyGraph(graph);
  return graph;
}

void RunPasses(Graph& graph, std::string_view passes) {
  for (std::string_view pass : Split(passes, ',')) RunPass(graph, Trim(pass));
}

void CheckGraph(const Graph& graph, std::string_view checks, bool closed) {
  std::string text = PrintGraph(graph);
  EXPECT_NO_THROW(VerifyGraph(graph, closed)) << text;
  EXPECT_EQ(PrintGraph(ParseGraph(text, "printed")), text);
  CheckText(text, checks);
}

void CheckPasses(std::string_view text, std::string_view passes, std::string_view checks) {
  Graph graph = ParseAndVerify(text);
  RunPasses(graph, passes);
  CheckGraph(graph, checks, passes.find("insert_reshards") != std::string_view::npos);
}

}  // namespace shardc::testing
