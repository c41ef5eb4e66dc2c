// The library's own operator new and delete, which this program is linked with.
#include <gtest/gtest.h>
#include <sys/time.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace ringroad::preload {
namespace {

struct Piece {
  unsigned char* memory;
  std::size_t size;
  std::size_t alignment;
  unsigned char mark;
};

Piece make(std::minstd_rand& random) {
  static constexpr std::size_t kLargest[] = {16, 200, 5000, 40'000, 300'000};
  static constexpr std::size_t kAlignments[] = {1, 16, 64, 4096};
  const std::size_t largest = kLargest[random() % std::size(kLargest)];
  Piece piece{nullptr, random() % largest, kAlignments[random() % std::size(kAlignments)],
              static_cast<unsigned char>(random())};
  void* const memory = piece.alignment == 1
                           ? ::operator new(piece.size)
                           : ::operator new(piece.size, std::align_val_t(piece.alignment));
  piece.memory = static_cast<unsigned char*>(memory);
  std::memset(piece.memory, piece.mark, piece.size);
  return piece;
}

bool is_whole(const Piece& piece) {
  if (reinterpret_cast<std::uintptr_t>(piece.memory) % piece.alignment != 0) return false;
  for (std::size_t i = 0; i < piece.size; ++i) {
    if (piece.memory[i] != piece.mark) return false;
  }
  return true;
}

void drop(const Piece& piece) {
  if (piece.alignment == 1) {
    ::operator delete(piece.memory);
  } else {
    ::operator delete(piece.memory, std::align_val_t(piece.alignment));
  }
}

TEST(MemoryTest, NothingIsGivenToTwo) {
  constexpr int kThreads = 4;
  constexpr int kSteps = 6000;
  // Also what another thread has made.
  static std::atomic<Piece*> passed{nullptr};
  std::atomic<int> damaged{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      std::vector<Piece> mine;
      for (int i = 0; i < kSteps; ++i) {
        if (mine.size() < 40) {
          mine.push_back(make(random));
          continue;
        }
        std::swap(mine[random() % mine.size()], mine.back());
        auto* const given = new Piece(mine.back());
        mine.pop_back();
        Piece* const got = passed.exchange(given);
        if (got == nullptr) continue;
        if (!is_whole(*got)) ++damaged;
        drop(*got);
        delete got;
      }
      for (const Piece& piece : mine) {
        if (!is_whole(piece)) ++damaged;
        drop(piece);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(damaged, 0);
}

std::atomic<int> handled{0};
int* kept = nullptr;
int spoilt = 0;

// Leaves the list with the first block that it had, and without the second.
void change_the_list(int) {
  if (kept != nullptr && *kept != -1) ++spoilt;
  int* const first = new int(-1);
  int* const second = new int(-1);
  delete kept;
  delete first;
  kept = second;
  handled.fetch_add(1);
}

TEST(MemoryTest, AHandlerFindsItWholeAtAnyMoment) {
  struct sigaction action {};
  action.sa_handler = change_the_list;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval timer{{0, 50}, {0, 50}};
  setitimer(ITIMER_REAL, &timer, nullptr);
  while (handled < 4000) {
    int* all[64];
    for (int*& each : all) each = new int(1);
    for (int* each : all) delete each;
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  EXPECT_EQ(spoilt, 0);
}

TEST(MemoryTest, WhatIsFreedIsUsedAgain) {
  std::set<void*> seen;
  for (int i = 0; i < 10'000; ++i) {
    void* const memory = ::operator new(777);
    seen.insert(memory);
    ::operator delete(memory);
  }
  EXPECT_EQ(seen.size(), 1U);
}

TEST(MemoryTest, MoreThanThereIsIsRefused) {
  volatile std::size_t most = SIZE_MAX;
  EXPECT_EQ(::operator new(most, std::nothrow), nullptr);
  EXPECT_THROW(static_cast<void>(::operator new(most / 2)), std::bad_alloc);
}

}  // namespace
}  // namespace ringroad::preload
