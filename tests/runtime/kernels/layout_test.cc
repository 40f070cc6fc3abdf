#include "runtime/cpu/kernels/layout.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

template <typename T>
void CheckPermute(const std::vector<int64_t>& dims, const std::vector<int>& perm) {
  int64_t size = 1;
  for (int64_t d : dims) size *= d;
  std::vector<T> src(size), want(size);
  for (int64_t i = 0; i < size; ++i) src[i] = static_cast<T>(i * 2654435761U);
  std::vector<int64_t> out_dims;
  for (int p : perm) out_dims.push_back(dims[p]);
  for (int64_t i = 0; i < size; ++i) {
    int64_t rest = i, from = 0;
    for (int d = static_cast<int>(dims.size()) - 1; d >= 0; --d) {
      int64_t stride = 1;
      for (size_t e = perm[d] + 1; e < dims.size(); ++e) stride *= dims[e];
      from += rest % out_dims[d] * stride;
      rest /= out_dims[d];
    }
    want[i] = src[from];
  }
  for (int threads : {1, 2, 3}) {
    std::vector<T> got(size, 99);
    Permute(src.data(), got.data(), dims, perm, sizeof(T), threads);
    ASSERT_EQ(got, want) << testing::PrintToString(dims) << testing::PrintToString(perm);
  }
}

TEST(Layout, EveryPermutationOfFiveDims) {
  std::vector<int> perm = {0, 1, 2, 3, 4};
  do {
    CheckPermute<uint32_t>({3, 5, 2, 7, 4}, perm);
    CheckPermute<uint8_t>({2, 1, 33, 3, 2}, perm);
  } while (std::next_permutation(perm.begin(), perm.end()));
}

TEST(Layout, LargeFastPaths) {
  CheckPermute<uint32_t>({2, 67, 12, 64}, {0, 2, 1, 3});
  CheckPermute<uint32_t>({2, 12, 67, 64}, {0, 1, 3, 2});
  CheckPermute<uint32_t>({257, 771}, {1, 0});
  CheckPermute<uint64_t>({65, 33, 9}, {2, 1, 0});
  CheckPermute<uint16_t>({501, 1, 130}, {2, 1, 0});
  CheckPermute<uint32_t>({}, {});
  CheckPermute<uint32_t>({4, 0, 3}, {2, 1, 0});
}

template <typename T>
void CheckTransposes() {
  for (int64_t rows : {1, 3, 4, 8, 16, 17, 31, 64, 130}) {
    for (int64_t columns : {1, 2, 7, 16, 33, 64, 256, 300})
      CheckPermute<T>({2, rows, columns}, {0, 2, 1});
  }
}

TEST(Layout, TransposesOfEverySize) {
  CheckTransposes<uint8_t>();
  CheckTransposes<uint16_t>();
  CheckTransposes<uint32_t>();
  CheckTransposes<uint64_t>();
}

TEST(Layout, StridedBoxes) {
  // A box [4, 3, 50] out of [6, 5, 70] into a wider destination; broadcast; reversal; windows that
  // overlap.
  std::vector<float> src = RandomVector(6 * 5 * 70, 1);
  const std::vector<int64_t> dims = {4, 3, 50}, src_strides = {350, 70, 1};
  for (const std::vector<int64_t>& dst_strides : {std::vector<int64_t>{180, 60, 1},
                                                  {1, 4, 12},
                                                  {50, 200, 1},
                                                  {3, 1, 12},
                                                  {2, 8, 24},
                                                  {300, 100, 2}}) {
    for (const std::vector<int64_t>& strides : {src_strides,
                                                std::vector<int64_t>{0, 70, 1},
                                                {350, 70, 0},
                                                {350, -70, 1},
                                                {350, 1, 1},
                                                {0, 0, 0}}) {
      for (int threads : {1, 2, 3}) {
        const float* base = src.data() + 3 * 70 + 7;
        std::vector<float> got(1300, 5), want(1300, 5);
        for (int64_t i = 0; i < 4; ++i) {
          for (int64_t j = 0; j < 3; ++j) {
            for (int64_t k = 0; k < 50; ++k) {
              want[i * dst_strides[0] + j * dst_strides[1] + k * dst_strides[2]] =
                  base[i * strides[0] + j * strides[1] + k * strides[2]];
            }
          }
        }
        StridedCopy(base, strides, got.data(), dst_strides, dims, 4, threads);
        ASSERT_EQ(got, want);
      }
    }
  }
  EXPECT_THROW(StridedCopy(src.data(), dims, src.data(), dims, dims, 3, 1), std::invalid_argument);
}

TEST(Layout, RefusesOtherRanks) {
  float x = 1, y = 0;
  const std::vector<int64_t> two = {1, 1}, three = {1, 1, 1}, eight(8, 1), nine(9, 1);
  EXPECT_THROW(StridedCopy(&x, two, &y, three, three, 4, 1), std::invalid_argument);
  EXPECT_THROW(StridedCopy(&x, three, &y, two, three, 4, 1), std::invalid_argument);
  EXPECT_THROW(StridedCopy(&x, nine, &y, nine, nine, 4, 1), std::invalid_argument);
  std::vector<int> perm(9);
  std::iota(perm.begin(), perm.end(), 0);
  EXPECT_THROW(Permute(&x, &y, nine, perm, 4, 1), std::invalid_argument);
  EXPECT_THROW(Permute(&x, &y, eight, perm, 4, 1), std::invalid_argument);
  StridedCopy(&x, eight, &y, eight, eight, 4, 1);
  EXPECT_EQ(y, 1);
}

TEST(Embedding, GatherAndGradient) {
  for (auto [count, rows, cols] :
       {std::array<int64_t, 3>{1, 1, 1}, {300, 40, 257}, {57, 1000, 64}, {2000, 7, 33}}) {
    const int64_t offset = 100;
    std::vector<int64_t> ids(count);
    for (int64_t i = 0; i < count; ++i) ids[i] = offset - 3 + i * 7919 % (rows + 6);
    const auto table = RandomVector(rows * cols, 1), dy = RandomVector(count * cols, 2);
    const auto before = RandomVector(rows * cols, 3);
    std::vector<float> first;
    ForEveryKernelSet([&](const KernelTable& k, int threads) {
      const EmbeddingArgs args{ids.data(), count, offset, rows, cols};
      std::vector<float> y(count * cols, 9);
      k.embedding.gather(args, table.data(), y.data(), threads);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = ids[i] - offset;
        for (int64_t c = 0; c < cols; ++c) {
          ASSERT_EQ(y[i * cols + c], row < 0 || row >= rows ? 0 : table[row * cols + c]);
        }
      }
      for (bool accumulate : {false, true}) {
        std::vector<double> want(rows * cols);
        if (accumulate) want.assign(before.begin(), before.end());
        for (int64_t i = 0; i < count; ++i) {
          const int64_t row = ids[i] - offset;
          if (row < 0 || row >= rows) continue;
          for (int64_t c = 0; c < cols; ++c) want[row * cols + c] += dy[i * cols + c];
        }
        auto got = before;
        k.embedding.gradient(args, dy.data(), got.data(), accumulate, threads);
        ExpectNear(got, want, 1e-5, 2e-5);
        if (first.empty()) first = got;
        EXPECT_TRUE(accumulate || SameBits(got, first));
      }
    });
  }
}

}  // namespace
}  // namespace shardc::cpu
