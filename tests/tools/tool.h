// Runs the built shardc command in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardc::testing {

struct ToolResult {
  int exit = -1;
  std::string out, err;
};

// A small GPT: 2 layers, hidden 32, 4 heads, an odd vocabulary of 97, batch 2, seq 16.
inline constexpr const char* kModel =
    "'builtin:gpt?layers=2,hidden=32,heads=4,vocab=97,seq=16,batch=2'";

class ToolTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // `arguments` as in a shell; files are relative to dir().
  ToolResult Tool(const std::string& arguments) const;
  // Any shell command, there.
  ToolResult Shell(const std::string& command) const;
  // Compiles the model and expects that to work.
  void Compile(const std::string& folder, const std::string& options,
               const std::string& model = kModel) const;
  // `run` must work.
  ToolResult RunOk(const std::string& arguments) const;
  // `run` must fail so, with all of these in its message.
  void RunFails(const std::string& arguments, int exit,
                const std::vector<std::string>& parts) const;
  // What `dump --json` says of a plan.
  nlohmann::json Dump(const std::string& plan) const;
  // The files must have the same tensors, whose elements differ by at most `tolerance`.
  void ExpectSameTensors(const std::string& want, const std::string& got, double tolerance) const;
  const std::string& dir() const { return dir_; }
  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  std::string Read(const std::string& name) const;
  void Write(const std::string& name, const std::string& bytes) const;
  // ids.npy: tokens i64[2, 16] below 97, all different but for few.
  void WriteIds(const std::string& name = "ids.npy", int64_t at = -1, int64_t value = 0) const;
  // Names in a folder, hidden ones too, sorted and joined by blanks.
  std::string List(const std::string& folder) const;

 private:
  std::string dir_;
};

}  // namespace shardc::testing
