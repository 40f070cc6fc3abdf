#include "tests/tools/tool.h"

#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "ir/safetensors.h"
#include "tests/ir/write_tensors.h"

namespace shardc::testing {

namespace fs = std::filesystem;

void ToolTest::SetUp() {
  std::string name = ::testing::TempDir() + "/shardc_tool_XXXXXX";
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  dir_ = name;
}

void ToolTest::TearDown() { fs::remove_all(dir_); }

ToolResult ToolTest::Shell(const std::string& command) const {
  fs::path out = dir_ + ".out", err = dir_ + ".err";
  std::string line =
      "cd '" + dir_ + "' && { " + command + "; } >'" + out.string() + "' 2>'" + err.string() + "'";
  int status = std::system(line.c_str());
  auto text = [](const fs::path& path) {
    std::stringstream s;
    s << std::ifstream(path, std::ios::binary).rdbuf();
    fs::remove(path);
    return s.str();
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text(out), text(err)};
}

ToolResult ToolTest::Tool(const std::string& arguments) const {
  return Shell(std::string("'") + SHARDC_TOOL + "' " + arguments);
}

void ToolTest::Compile(const std::string& folder, const std::string& options,
                       const std::string& model) const {
  ToolResult r = Tool("compile " + model + " " + options + " -q -o " + folder);
  ASSERT_EQ(r.exit, 0) << r.err;
}

ToolResult ToolTest::RunOk(const std::string& arguments) const {
  ToolResult r = Tool("run " + arguments);
  EXPECT_EQ(r.exit, 0) << arguments << ": " << r.err;
  return r;
}

nlohmann::json ToolTest::Dump(const std::string& plan) const {
  ToolResult r = Tool("dump " + plan + " --json");
  EXPECT_EQ(r.exit, 0) << r.err;
  return nlohmann::json::parse(r.out);
}

void ToolTest::ExpectSameTensors(const std::string& want, const std::string& got,
                                 double tolerance) const {
  const SafetensorsFile a(Path(want)), b(Path(got));
  ASSERT_EQ(a.entries().size(), b.entries().size());
  for (const auto& [name, entry] : a.entries()) {
    const HostTensor x = a.Read(name), y = b.Read(name);
    ASSERT_EQ(x.shape(), y.shape()) << name;
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      ASSERT_NEAR(x.AsDouble(i), y.AsDouble(i), tolerance) << name << " at " << i;
    }
  }
}

void ToolTest::RunFails(const std::string& arguments, int exit,
                        const std::vector<std::string>& parts) const {
  ToolResult r = Tool("run " + arguments);
  EXPECT_EQ(r.exit, exit) << arguments << ": " << r.err;
  for (const std::string& part : parts) {
    EXPECT_NE(r.err.find(part), std::string::npos)
        << arguments << ": no '" << part << "' in " << r.err;
  }
}

std::string ToolTest::Read(const std::string& name) const {
  std::stringstream s;
  s << std::ifstream(Path(name), std::ios::binary).rdbuf();
  return s.str();
}

void ToolTest::Write(const std::string& name, const std::string& bytes) const {
  std::ofstream out(Path(name), std::ios::binary);
  out << bytes;
  out.close();
  ASSERT_TRUE(out) << name;
}

void ToolTest::WriteIds(const std::string& name, int64_t at, int64_t value) const {
  HostTensor ids(DType::kI64, {2, 16});
  for (int64_t i = 0; i < 32; ++i) ids.data<int64_t>()[i] = (7 * i + 3) % 97;
  if (at >= 0) ids.data<int64_t>()[at] = value;
  WriteNpy(Path(name), ids);
}

std::string ToolTest::List(const std::string& folder) const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Path(folder))) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& n : names) text += (text.empty() ? "" : " ") + n;
  return text;
}

}  // namespace shardc::testing
