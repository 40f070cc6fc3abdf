// What the parser says of texts that are wrong, and that no text makes it crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "ir/diagnostic.h"
#include "ir/text.h"
#include "tests/ir/op_samples.h"

namespace shardc {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kText = R"(mesh [dp=2, tp=2]
graph @g(%x: f32[8@dp, 6], %"a b": f32[6@tp/[4,2]]) -> (loss: %0, %y) {
  %w1 = param "h.0" {aliases=["a", "b \"c\""], role="MLP_UP"} : f32[6, 8@tp%2]
  %m = state "h.0.m" {dtype="f32", init=nan(0xfff8000000000000), shape=[6, 8]} : f32[6, 8@tp]
  %c = constant {value=tensor<f32[2]: 1.5, nan>} : f32[2]
  %0 = matmul %x, %w1 {phase="backward", site="h.0"} : f32[8@dp, 8@tp]  // cut twice
  %y = reshard %0 {for="matmul", why=[]} : f32[8, 8@(dp,tp)] partial(tp)
  update "h.0.m" %m {phase="optimizer"}
}
)";

// "E7001 t:2:3 message", or the printed graph.
std::string Try(std::string_view text) {
  try {
    return PrintGraph(ParseGraph(text, "t"));
  } catch (const Diagnostic& d) {
    return d.id() + " " + d.where() + " " + d.message() + " " + d.fix();
  }
}

struct BadText {
  const char* text;
  const char* error;  // begins with it
  const char* also = "";
};

TEST(TextErrors, ErrorsNameThePlaceAndWhatIsExpected) {
#define IN "graph @g(%a: f32[2], %b: f32[3]) -> () {\n"
  const BadText kCases[] = {
      {"", "E7001 t:1:1 found the end of the text, expected 'graph'"},
      {"grap @g", "E7001 t:1:1 found 'grap', expected 'graph'"},
      {"graph @g() -> () {", "E7001 t:1:19 found the end of the text, expected an op or '}'"},
      {"graph @g() -> () { } x", "E7001 t:1:22 found 'x', expected the end of the text"},
      {"mesh [tp=0] graph @g() -> () {}", "E7001 t:1:1 the mesh does not fit", "size 0"},
      {"mesh [tp=2, tp=2] graph @g() -> () {}", "E7001 t:1:1 ", "appears twice"},
      {"graph @g(%a: f33[2]) -> () {}", "E7001 t:1:14 found 'f33', expected an element type"},
      {"graph @g(%a: f32[-1]) -> () {}", "E7001 t:1:18 a dim has size -1"},
      {"graph @g(%a: f32[99999999999999999999]) -> () {}", "E7001 t:1:18 ", "size of a dim"},
      {"graph @g(%a: f32[4294967296, 4294967296]) -> () {}", "E7001 t:1:17 ", "too large"},
      {"graph @g(%a: f32[4294967296, 4294967296, 0]) -> () {}", "E7001 t:1:17 ", "too large"},
      {"mesh [tp=2] graph @g(%a: f32[4@t]) -> () {}", "E7001 t:1:32 the mesh has no axis 't'",
       "'tp'"},
      {"mesh [tp=2] graph @g(%a: f32[4@(tp,tp)]) -> () {}", "E7001 t:1:36 ", "twice"},
      {"mesh [tp=2] graph @g(%a: f32[4@tp/3]) -> () {}", "E7001 t:1:35 ", "3 equal segments"},
      {"mesh [tp=2] graph @g(%a: f32[0@tp/9000000000000]) -> () {}", "E7001 t:1:35 "},
      {"mesh [tp=2] graph @g(%a: f32[4@tp%0]) -> () {}", "E7001 t:1:34 ", "granule"},
      {"graph @g(%a: f32[2], %a: f32[2]) -> () {}", "E7001 t:1:22 the name %a is taken"},
      {"graph @g() -> (%y) {\n}", "E7001 t:1:16 there is no value %y"},
      {IN "  %0 = negg %a : f32[2]\n}", "E7002 t:2:8 there is no op 'negg'", "'neg'"},
      {IN "  %val = neg %a : f32[2]\n  %1 = neg %vall : f32[2]\n}",
       "E7001 t:3:12 there is no value %vall", "'val'"},
      {IN "  %0 = neg %0 : f32[2]\n}", "E7001 t:2:12 there is no value %0"},
      {IN "  %a = neg %a : f32[2]\n}", "E7001 t:2:3 the name %a is taken"},
      {IN "  %0 = neg %a : f32[3]\n}", "E1101 t:2:8: op 'neg' result %0 is f32[2], not f32[3]"},
      {IN "  %0 = neg %a : i32[2]\n}", "E1101 t:2:8: op 'neg' result %0 is f32[2], not i32[2]"},
      {IN "  %0 = add %a, %b : f32[2]\n}", "E1101 t:2:8: op 'add' shapes [2] and [3]"},
      {"graph @g(%a: f32[4, 6], %b: f32[4, 8]) -> () {\n"
       "  %0 = matmul_tn %a, %b {batch=9223372036854775807} : f32[6, 8]\n}",
       "E1101 t:2:8: op 'matmul_tn' batch 9223372036854775807"},
      {IN "  %0 = add %a : f32[2]\n}", "E1101 t:2:8: op 'add' has 1 operands"},
      {IN "  %0, %1 = neg %a : f32[2], f32[2]\n}", "E1101 t:2:12: op 'neg' has 1 results, not 2"},
      {IN "  %0 = neg %a\n}", "E7001 t:2:8 the op has 1 results but 0 types"},
      {IN "  neg %a : f32[2]\n}", "E7001 t:2:3 the op has 0 results but 1 types"},
      {IN "  %0 = gelu %a : f32[2]\n}", "E7001 t:2:8 op 'gelu' lacks its attribute 'approximate'"},
      {IN "  %0 = gelu %a {aproximate=\"none\"} : f32[2]\n}",
       "E7001 t:2:17 op 'gelu' has no attribute 'aproximate'", "'approximate'"},
      {IN "  %0 = gelu %a {approximate=1} : f32[2]\n}",
       "E7001 t:2:29 found '1', expected a string"},
      {IN "  %0 = neg %a {phase=\"forwards\"} : f32[2]\n}", "E7001 t:2:22 ", "\"backward\""},
      {IN "  %0 = neg %a {stage=-1} : f32[2]\n}", "E7001 t:2:22 ", "the number of a stage"},
      {IN "  %0 = neg %a {microbatch=2147483647} : f32[2]\n}", "E7001 t:2:27 ",
       "the number of a microbatch"},
      {IN "  %0 = neg %a {stage=1, stage=1} : f32[2]\n}", "E7001 t:2:25 ", "given twice"},
      {IN "  %0 = neg %a {site=\"a\", site=\"b\"} : f32[2]\n}", "E7001 t:2:26 ", "given twice"},
      {IN "  %0 = neg %a {site=\"a\n\"} : f32[2]\n}", "E7001 t:2:21 ", "no closing"},
      {IN "  %0 = neg %a {site=\"\\q\"} : f32[2]\n}", "E7001 t:2:21 ", "unknown escape"},
      {IN "  %0 = param {role=\"X\"} : f32[2]\n}", "E7001 t:2:14 ", "the name of the param"},
      {IN "  %0 = split %a {axis=0, sizes=[99999999999999999999]} : f32[2]\n}", "E7001 t:2:33 ",
       "expected an integer"},
      {IN "  %0 = split %a {axis=0.5, sizes=[2]} : f32[2]\n}", "E7001 t:2:23 found '0.5'"},
      {IN "  %0 = constant {value=tensor<f32[2]: 1>} : f32[2]\n}", "E7001 t:2:40 ", "2 elements"},
      {IN "  %0 = constant {value=tensor<f32[1]: 1, 2>} : f32[1]\n}", "E7001 t:2:42 more than"},
      {IN "  %0 = constant {value=tensor<f32[1]: 0x00>} : f32[1]\n}", "E7001 t:2:39 ",
       "expected 8"},
      {IN "  %0 = constant {value=tensor<f32[1]: 0x0000000g>} : f32[1]\n}", "E7001 t:2:39 ", "hex"},
      {IN "  %0 = constant {value=tensor<f32[1]: 1e99>} : f32[1]\n}", "E7001 t:2:39 ", "can hold"},
      {IN "  %0 = constant {value=tensor<f32[1]: nan(0x0)>} : f32[1]\n}", "E7001 t:2:43 ", "NaN"},
      {IN "  %0 = constant {value=tensor<i32[1]: 2147483648>} : i32[1]\n}", "E7001 t:2:39 "},
      {IN "  %0 = constant {value=tensor<f32[1099511627776]: splat(0)>} : f32[1099511627776]\n}",
       "E7001 t:2:51 ", "4 GiB"},
      {IN "  ;\n}", "E7001 t:2:3 a stray ';'"},
      {IN "  \x01\n}", "E7001 t:2:3 a character that cannot be here"},
      {IN "  % = neg %a : f32[2]\n}", "E7001 t:2:3 '%' without a name"},
  };
#undef IN
  for (const BadText& c : kCases) {
    std::string result = Try(c.text);
    EXPECT_EQ(result.substr(0, std::strlen(c.error)), c.error) << result;
    EXPECT_THAT(result, HasSubstr(c.also)) << c.text;
  }
}

// Whatever the text, the parser gives a graph or a Diagnostic; a graph can be printed, and read
// again.
void ExpectHarmless(std::string_view text) {
  std::string once = Try(text);
  if (once.starts_with("E7001") || once.starts_with("E7002") || once.starts_with("E1101")) return;
  EXPECT_EQ(Try(once), once) << text;
}

std::string ManyOps() {
  std::string text(kText);
  for (const testing::OpSample& sample : testing::OpSamples()) {
    text += '\0';
    text += PrintGraph(testing::BuildSample(sample).graph);
  }
  return text;
}

TEST(TextErrors, TruncatedTextIsHarmless) {
  EXPECT_EQ(Try(kText).substr(0, 5), "mesh ") << Try(kText);
  for (size_t n = 0; n < kText.size(); ++n) ExpectHarmless(kText.substr(0, n));
  EXPECT_EQ(Try(kText.substr(0, kText.size() - 2)).substr(0, 5), "E7001");
}

TEST(TextErrors, ChangedTextIsHarmless) {
  std::mt19937_64 random(3);
  std::string all = ManyOps();
  const std::string_view kPieces[] = {"0",
                                      "-1",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "1",
                                      "[",
                                      "]",
                                      "{",
                                      "}",
                                      "(",
                                      ")",
                                      ",",
                                      "%",
                                      "\"",
                                      "\\",
                                      "=",
                                      ":",
                                      "@tp",
                                      "@",
                                      "/",
                                      "->",
                                      "nan",
                                      "inf",
                                      "1.5",
                                      "%x",
                                      " ",
                                      "\n",
                                      "f32[",
                                      "i64",
                                      "bool",
                                      "partial(",
                                      "tensor<",
                                      "0x",
                                      "\xff"};
  for (size_t begin = 0; begin < all.size();) {
    size_t end = std::min(all.find('\0', begin), all.size());
    std::string_view text =
        std::string_view(all).substr(begin, std::min<size_t>(end - begin, 3000));
    for (int i = 0; i < 60; ++i) {
      std::string changed(text);
      for (uint64_t edits = random() % 3 + 1; edits-- > 0 && !changed.empty();) {
        size_t at = random() % changed.size();
        // Numbers are where most of the meaning is.
        if (random() % 2)
          at = std::min(changed.find_first_of("0123456789", at), changed.size() - 1);
        changed.replace(at, random() % 3, kPieces[random() % std::size(kPieces)]);
      }
      SCOPED_TRACE(changed);
      ASSERT_NO_FATAL_FAILURE(ExpectHarmless(changed));
    }
    begin = end + 1;
  }
}

}  // namespace
}  // namespace shardc
