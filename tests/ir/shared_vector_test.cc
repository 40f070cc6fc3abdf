#include "ir/shared_vector.h"

#include <gmock/gmock.h>

#include <utility>

namespace shardc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SharedVector, CopiesHoldTheElementsOnce) {
  const SharedVector<int> a = {1, 2, 3};
  const SharedVector<int> b = a;
  EXPECT_TRUE(a.SharesWith(b));
  EXPECT_EQ(a.data(), b.data());
  EXPECT_EQ(b[1], 2);
  EXPECT_EQ(a, b);
  const SharedVector<int> same = {1, 2, 3};
  EXPECT_FALSE(a.SharesWith(same));
  EXPECT_EQ(a, same);
}

TEST(SharedVector, AChangeIsOfOneCopyAlone) {
  const SharedVector<int> a = {1, 2, 3};
  SharedVector<int> b = a, c = a, d = a;
  b[0] = 7;
  c.push_back(4);
  d.clear();
  EXPECT_THAT(a, ElementsAre(1, 2, 3));
  EXPECT_THAT(b, ElementsAre(7, 2, 3));
  EXPECT_THAT(c, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(d, IsEmpty());
  EXPECT_FALSE(a.SharesWith(b));
  const int* where = std::as_const(b).data();
  b[1] = 8;  // it is alone already
  EXPECT_EQ(std::as_const(b).data(), where);
}

TEST(SharedVector, EmptyAndMovedFrom) {
  SharedVector<int> a;
  EXPECT_THAT(std::as_const(a), IsEmpty());
  a.push_back(1);
  SharedVector<int> b = std::move(a);
  EXPECT_THAT(b, ElementsAre(1));
  EXPECT_THAT(std::as_const(a), IsEmpty());
  a.push_back(2);
  EXPECT_THAT(a, ElementsAre(2));
}

}  // namespace
}  // namespace shardc
