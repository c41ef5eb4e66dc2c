#include "cli/paired.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ringroad::cli {
namespace {

TEST(Paired, OfNothingNothingIsSaid) {
  const Comparison none = compare({});
  EXPECT_EQ(none.pairs, 0U);
  EXPECT_EQ(none.p, 1);
  EXPECT_EQ(compare({{0, 5}, {5, 0}, {-1, 5}, {std::nan(""), 1}}).pairs, 0U);
}

TEST(Paired, OnePairHasARatioAndNoInterval) {
  const Comparison one = compare({{100, 150}});
  EXPECT_DOUBLE_EQ(one.ratio, 1.5);
  EXPECT_EQ(one.low, 0);
  EXPECT_EQ(one.high, 0);
  EXPECT_EQ(one.p, 1) << "either way is as far";
}

// By hand: logarithms ln 2, ln 2, ln 4; mean (4/3) ln 2, standard deviation ln 2 / sqrt 3, t(2)
// = 4.303.
TEST(Paired, TheRatioIsTheGeometricMeanWithStudentsInterval) {
  const Comparison c = compare({{10, 20}, {100, 200}, {1, 4}});
  const double mean = 4.0 / 3.0 * std::log(2.0);
  const double half = 4.303 * (std::log(2.0) / std::sqrt(3.0)) / std::sqrt(3.0);
  EXPECT_NEAR(c.ratio, std::exp(mean), 1e-12);
  EXPECT_NEAR(c.low, std::exp(mean - half), 1e-9);
  EXPECT_NEAR(c.high, std::exp(mean + half), 1e-9);
  EXPECT_NEAR(c.mean_a, 37, 1e-9);
  EXPECT_NEAR(c.mean_b, 224.0 / 3, 1e-9);
}

TEST(Paired, ADriftOfTheWholeCancels) {
  std::vector<Pair> pairs;
  for (int i = 1; i <= 6; ++i) pairs.push_back({100.0 * i, 110.0 * i});
  const Comparison c = compare(pairs);
  EXPECT_NEAR(c.ratio, 1.1, 1e-12);
  EXPECT_NEAR(c.low, 1.1, 1e-6);
  EXPECT_NEAR(c.high, 1.1, 1e-6);
  EXPECT_DOUBLE_EQ(c.p, 2.0 / 64) << "all one way, or all the other";
}

TEST(Paired, WhatGoesBothWaysIsChance) {
  const Comparison c = compare({{10, 12}, {12, 10}, {10, 12}, {12, 10}});
  EXPECT_NEAR(c.ratio, 1, 1e-12);
  EXPECT_LT(c.low, 1);
  EXPECT_GT(c.high, 1);
  EXPECT_DOUBLE_EQ(c.p, 1);
}

// Of the eight ways to sign 3, 2, 1 four reach |3 + 2 - 1| = 4.
TEST(Paired, TheSignFlipTestCountsEveryWay) {
  const Comparison c = compare({{1, std::exp(3)}, {1, std::exp(2)}, {1, std::exp(-1)}});
  EXPECT_DOUBLE_EQ(c.p, 4.0 / 8);
}

TEST(Paired, TwentyPairsAreCounted) {
  const std::vector<Pair> pairs(20, Pair{1, 2});
  EXPECT_DOUBLE_EQ(compare(pairs).p, 2.0 / (1 << 20));
}

}  // namespace
}  // namespace ringroad::cli
