// `run --profile`: tables on stderr, and a trace that its viewers accept.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

int64_t Nanoseconds(const Json& microseconds) {
  return std::llround(microseconds.get<double>() * 1000);
}

// What is wrong with a trace, or nothing: every track has a name, its complete events come in the
// order of their beginnings and are strictly nested.
std::string CheckTrace(const std::string& text) {
  Json trace = Json::parse(text, nullptr, false);
  if (trace.is_discarded() || !trace.contains("traceEvents")) return "no JSON with traceEvents";
  using Track = std::pair<int, int>;
  std::map<Track, std::vector<int64_t>> open;  // ends
  std::map<Track, int64_t> begun;
  std::set<int> processes;
  std::set<Track> threads;
  for (const Json& e : trace["traceEvents"]) {
    Track track{e.at("pid"), e.at("tid")};
    if (e.at("ph") == "M") {
      if (e.at("name") == "process_name") processes.insert(track.first);
      if (e.at("name") == "thread_name") threads.insert(track);
      continue;
    }
    if (e.at("ph") != "X") return "an event that is not complete: " + e.dump();
    int64_t begin = Nanoseconds(e.at("ts")), end = begin + Nanoseconds(e.at("dur"));
    if (begin < 0 || end < begin) return "negative time: " + e.dump();
    if (begin < begun[track]) return "begins before the one before: " + e.dump();
    begun[track] = begin;
    std::vector<int64_t>& ends = open[track];
    while (!ends.empty() && ends.back() <= begin) ends.pop_back();
    if (!ends.empty() && end > ends.back()) return "not nested: " + e.dump();
    ends.push_back(end);
  }
  for (const auto& [track, begin] : begun) {
    if (!processes.contains(track.first) || !threads.contains(track)) return "a track has no name";
  }
  return "";
}

std::string TraceOf(const std::string& events) {
  return R"({"traceEvents":[{"ph":"M","pid":0,"tid":0,"name":"process_name","args":{"name":"r"}},)"
         R"({"ph":"M","pid":0,"tid":0,"name":"thread_name","args":{"name":"t"}},)" +
         events + "]}";
}

std::string Event(int tid, double ts, double dur) {
  return Json{{"ph", "X"}, {"pid", 0}, {"tid", tid}, {"name", "e"}, {"ts", ts}, {"dur", dur}}
      .dump();
}

TEST(TraceChecker, FindsWhatIsWrong) {
  auto check = [](const std::string& events) { return CheckTrace(TraceOf(events)); };
  std::string outer = Event(0, 0, 10), inner = Event(0, 2, 3), next = Event(0, 5, 5);
  EXPECT_THAT(check(outer + "," + inner + "," + next), IsEmpty());
  EXPECT_THAT(check(outer + "," + Event(0, 9, 2)), HasSubstr("not nested"));
  EXPECT_THAT(check(outer + "," + Event(0, 9, 1.001)), HasSubstr("not nested"));
  EXPECT_THAT(check(inner + "," + outer), HasSubstr("before"));
  EXPECT_THAT(check(Event(0, 2, -1)), HasSubstr("negative"));
  EXPECT_THAT(check(Event(1, 2, 1)), HasSubstr("no name"));
  EXPECT_THAT(CheckTrace("{\"traceEvents\":["), HasSubstr("no JSON"));
}

class ProfileTest : public ToolTest {
 protected:
  void SetUp() override {
    ToolTest::SetUp();
    WriteIds();
  }
};

TEST_F(ProfileTest, TraceOfTwoRanks) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2 --optimizer adamw");
  ToolResult r = Tool("run plan --input input_ids=@ids.npy --repeat 3 --profile trace.json");
  ASSERT_EQ(r.exit, 0) << r.err;
  std::string text = Read("trace.json");
  EXPECT_THAT(CheckTrace(text), IsEmpty());

  std::map<int, int> steps, instructions;
  std::map<std::string, int> collectives;
  Json trace = Json::parse(text);
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] == "M") continue;
    if (e["cat"] == "step") ++steps[e["pid"]];
    if (!e.contains("args")) continue;
    ++instructions[e["pid"]];
    const Json& args = e["args"];
    for (const char* key : {"op", "site", "phase", "in", "out", "flops", "bytes"}) {
      ASSERT_TRUE(args.contains(key)) << e;
    }
    if (!args.contains("collective")) continue;
    ++collectives[args["op"]];
    EXPECT_FALSE(args["why"].empty()) << e;
    EXPECT_GE(args["wait_us"], 0);
    EXPECT_LE(Nanoseconds(args["wait_us"]), Nanoseconds(e["dur"]));
  }
  EXPECT_EQ(steps, (std::map<int, int>{{0, 3}, {1, 3}}));
  EXPECT_EQ(instructions[0], instructions[1]);
  EXPECT_GT(instructions[0], 3 * 100);
  EXPECT_GE(collectives["all_reduce"], 2 * 3 * 8);  // four in a layer
}

TEST_F(ProfileTest, Tables) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2");
  ToolResult r = Tool("run plan --input input_ids=@ids.npy --repeat 2 --profile trace.json --json");
  ASSERT_EQ(r.exit, 0) << r.err;
  EXPECT_TRUE(Json::parse(r.out).is_object());  // and nothing else on stdout
  EXPECT_THAT(r.err, AllOf(HasSubstr("mean of 2 ranks and 2 steps"), HasSubstr("GFLOP/s"),
                           HasSubstr("%GEMM"), HasSubstr("%copy")));
  EXPECT_THAT(r.err, ::testing::ContainsRegex("\nmatmul_tn  *backward  *[0-9]"));
  EXPECT_THAT(r.err, ::testing::ContainsRegex("\ntransformer.h.0  *forward  *[0-9]"));
  EXPECT_THAT(r.err, ::testing::ContainsRegex("\ntransformer.h.1  *backward  *[0-9]"));
  EXPECT_THAT(r.err, ::testing::ContainsRegex("\nall_reduce  *1  *[0-9]"));
  EXPECT_THAT(r.err, ::testing::ContainsRegex("GEMM [0-9.]+% of the time"));
}

TEST_F(ProfileTest, WithoutRepeatTheOnlyStepIsRecorded) {
  Compile("plan", "--spec serial");
  ToolResult r = Tool("run plan --input input_ids=@ids.npy --profile trace.json");
  ASSERT_EQ(r.exit, 0) << r.err;
  EXPECT_THAT(r.err, AllOf(HasSubstr("mean of 1 rank and 1 step;"), Not(HasSubstr("wait ms"))));
  EXPECT_THAT(CheckTrace(Read("trace.json")), IsEmpty());
}

TEST_F(ProfileTest, ATraceThatCannotBeWritten) {
  Compile("plan", "--spec serial");
  ToolResult r = Tool("run plan --input input_ids=@ids.npy --profile absent/trace.json");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, AllOf(HasSubstr("E5003"), HasSubstr("absent/trace.json")));
}

}  // namespace
}  // namespace shardc::testing
