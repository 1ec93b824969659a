// Measures what bench_stores.py asks for.
//
//     bench_stores schemes FRAMES
//     bench_stores codec FRAMES
//
// FRAMES is a file of 84x84 frames in the order of play. "schemes" holds them as groups, each group
// in a place of its own, and prints a line for every way of doing so: name, bytes a frame,
// microseconds to read a batch of 32 runs of 5 frames from random places (the least of several
// turns). "codec" prints a line for each instruction set that this processor has: name, then
// microseconds to write what changed from a frame to the next, to read it, to write a whole frame
// and to read it; each the mean over the frames, in the least of several turns.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fastdqn/frame_codec.hpp"

namespace {

using namespace fastdqn;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kFrame = 84 * 84;
constexpr std::size_t kRun = 5;
constexpr std::size_t kBatch = 32;

/// What changed, in words behind a bitmap of words behind a bitmap of that: the simplest scheme.
template <class Word>
struct WordCodec {
  static constexpr std::size_t kWords = (kFrame + sizeof(Word) - 1) / sizeof(Word);
  static constexpr std::size_t kMaps = (kWords + 63) / 64;

  std::size_t encode(const std::byte* before, const std::byte* after, std::byte* code) const {
    std::uint64_t top[(kMaps + 63) / 64]{};
    std::vector<std::uint64_t> maps;
    std::vector<Word> words;
    for (std::size_t map = 0; map < kMaps; ++map) {
      std::uint64_t bits = 0;
      for (std::size_t k = 0; k < 64 && map * 64 + k < kWords; ++k) {
        Word a = 0;
        Word b = 0;
        const std::size_t at = (map * 64 + k) * sizeof(Word);
        const std::size_t nbytes = std::min(sizeof(Word), kFrame - at);
        std::memcpy(&a, before + at, nbytes);
        std::memcpy(&b, after + at, nbytes);
        if (a == b) continue;
        bits |= std::uint64_t{1} << k;
        words.push_back(a ^ b);
      }
      if (bits == 0) continue;
      top[map / 64] |= std::uint64_t{1} << map % 64;
      maps.push_back(bits);
    }
    std::byte* out = code;
    const auto put = [&](const void* data, std::size_t nbytes) {
      std::memcpy(out, data, nbytes);
      out += nbytes;
    };
    put(top, sizeof(top));
    put(maps.data(), maps.size() * 8);
    put(words.data(), words.size() * sizeof(Word));
    return static_cast<std::size_t>(out - code);
  }

  void apply(const std::byte* code, std::size_t, std::byte* frame) const {
    std::uint64_t top[(kMaps + 63) / 64];
    std::memcpy(top, code, sizeof(top));
    const std::byte* maps = code + sizeof(top);
    std::size_t count = 0;
    for (const std::uint64_t bits : top) count += static_cast<std::size_t>(std::popcount(bits));
    const std::byte* words = maps + 8 * count;
    for (std::size_t page = 0; page < std::size(top); ++page) {
      for (std::uint64_t rest = top[page]; rest != 0; rest &= rest - 1, maps += 8) {
        const std::size_t map = page * 64 + static_cast<std::size_t>(std::countr_zero(rest));
        std::uint64_t bits;
        std::memcpy(&bits, maps, 8);
        for (; bits != 0; bits &= bits - 1, words += sizeof(Word)) {
          std::byte* place =
              frame + (map * 64 + static_cast<std::size_t>(std::countr_zero(bits))) * sizeof(Word);
          Word a;
          Word b;
          std::memcpy(&a, place, sizeof(Word));
          std::memcpy(&b, words, sizeof(Word));
          a ^= b;
          std::memcpy(place, &a, sizeof(Word));
        }
      }
    }
  }
};

/// One codec's functions, and a key that is coded or lies there as it is.
struct Scheme {
  std::string name;
  std::size_t frames;    // of a group
  bool key_in_middle;    // else the first
  bool from_key;         // changes from the key, else from frame to frame
  double full;           // bytes of changes, in frames, that end a group
  std::function<std::size_t(const std::byte*, const std::byte*, std::byte*)> encode;
  std::function<void(const std::byte*, std::size_t, std::byte*)> apply;
  std::function<std::size_t(const std::byte*, std::byte*)> encode_key;
  std::function<void(const std::byte*, std::size_t, std::byte*)> decode_key;
};

struct Group {
  std::size_t at;  // of its bytes
  std::size_t first;
  std::size_t frames;
  std::size_t key;
  std::vector<std::uint32_t> ends;  // of the code of each frame, from `at`
};

/// Least microseconds of a batch.
double timed(const std::function<void()>& batch) {
  double least = 1e9;
  for (int turn = 0; turn < 60; ++turn) {
    const auto begin = std::chrono::steady_clock::now();
    batch();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - begin;
    least = std::min(least, taken.count());
  }
  return least;
}

void measure(const Scheme& scheme, const Bytes& play) {
  const std::size_t capacity = play.size() / kFrame;
  const auto frame = [&](std::size_t number) { return play.data() + number * kFrame; };
  Bytes store(capacity * kFrame / 3 + (std::size_t{1} << 22));
  std::vector<Group> groups;
  std::size_t used = 0;
  for (std::size_t first = 0; first < capacity;) {
    Group group{used, first, 1, 0, {}};
    std::vector<Bytes> codes;
    std::size_t changes = 0;
    const auto full = static_cast<std::size_t>(scheme.full * kFrame);
    Bytes code(kFrame * 2);
    while (group.frames < scheme.frames && changes < full && first + group.frames < capacity) {
      const std::byte* before = scheme.from_key ? frame(first) : frame(first + group.frames - 1);
      code.resize(kFrame * 2);
      code.resize(scheme.encode(before, frame(first + group.frames), code.data()));
      changes += code.size();
      codes.push_back(code);
      ++group.frames;
    }
    group.key = scheme.key_in_middle ? group.frames / 2 : 0;
    code.resize(kFrame * 2);
    code.resize(scheme.encode_key(frame(first + group.key), code.data()));
    codes.insert(codes.begin() + static_cast<std::ptrdiff_t>(group.key), code);
    for (const Bytes& each : codes) {
      if (used + each.size() + 64 > store.size()) store.resize(store.size() * 3 / 2);
      std::memcpy(store.data() + used, each.data(), each.size());
      used += each.size();
      group.ends.push_back(static_cast<std::uint32_t>(used - group.at));
    }
    used += 8;  // what a store has to know of a group
    first += group.frames;
    groups.push_back(std::move(group));
  }
  Bytes target(kBatch * kRun * kFrame);
  std::mt19937 random(1);
  const auto read = [&](const Group& group, std::size_t first, std::byte* out) {
    const auto code = [&](std::size_t part) {
      const std::size_t begin = part == 0 ? 0 : group.ends[part - 1];
      return std::pair(store.data() + group.at + begin, group.ends[part] - begin);
    };
    const std::size_t last = first + kRun - 1;
    const auto place = [&](std::size_t number) { return out + (number - first) * kFrame; };
    const std::size_t nearest = std::clamp(group.key, first, last);
    scheme.decode_key(code(group.key).first, code(group.key).second, place(nearest));
    if (scheme.from_key) {
      for (std::size_t k = last + 1; k-- > first;) {
        if (k != nearest) std::memcpy(place(k), place(nearest), kFrame);
      }
      for (std::size_t k = std::max<std::size_t>(first, 1); k <= last; ++k) {
        scheme.apply(code(k).first, code(k).second, place(k));
      }
      return;
    }
    const std::size_t below = std::min(group.key, last);
    for (std::size_t k = group.key; k > below; --k) {
      scheme.apply(code(k - 1).first, code(k - 1).second, place(below));
    }
    for (std::size_t k = below; k > first; --k) {
      std::memcpy(place(k - 1), place(k), kFrame);
      scheme.apply(code(k - 1).first, code(k - 1).second, place(k - 1));
    }
    for (std::size_t k = group.key + 1; k <= nearest; ++k) {
      scheme.apply(code(k).first, code(k).second, place(nearest));
    }
    for (std::size_t k = std::max(group.key, nearest) + 1; k <= last; ++k) {
      std::memcpy(place(k), place(k - 1), kFrame);
      scheme.apply(code(k).first, code(k).second, place(k));
    }
  };
  const auto draw = [&](std::size_t row) {
    while (true) {
      const Group& group = groups[random() % groups.size()];
      if (group.frames < kRun) continue;
      const std::size_t first = random() % (group.frames - kRun + 1);
      std::byte* out = target.data() + row * kRun * kFrame;
      read(group, first, out);
      return std::pair(group.first + first, out);
    }
  };
  for (int check = 0; check < 200; ++check) {
    const auto [number, out] = draw(0);
    for (std::size_t k = 0; k < kRun; ++k) {
      if (std::memcmp(out + k * kFrame, frame(number + k), kFrame) != 0) {
        std::cerr << scheme.name << ": a frame was read wrong\n";
        std::exit(1);
      }
    }
  }
  const double microseconds = timed([&] {
    for (std::size_t row = 0; row < kBatch; ++row) draw(row);
  });
  std::cout << scheme.name << '\t' << static_cast<double>(used) / static_cast<double>(capacity)
            << '\t' << microseconds << '\n';
}

void measure_raw(const Bytes& play) {
  const std::size_t capacity = play.size() / kFrame;
  Bytes target(kBatch * kRun * kFrame);
  std::mt19937 random(1);
  const double microseconds = timed([&] {
    for (std::size_t row = 0; row < kBatch; ++row) {
      std::memcpy(target.data() + row * kRun * kFrame,
                  play.data() + random() % (capacity - kRun) * kFrame, kRun * kFrame);
    }
  });
  std::cout << "raw\t" << kFrame << '\t' << microseconds << '\n';
}

/// The codes of all frames, one behind the other, by a function that writes the one of a frame.
struct Codes {
  Bytes bytes;
  std::vector<std::size_t> ends;  // of each

  Codes(std::size_t frames, std::size_t longest,
        const std::function<std::size_t(std::size_t, std::byte*)>& write)
      : bytes(frames * longest + FrameCodec::kCodeSlack) {
    std::size_t used = 0;
    for (std::size_t number = 0; number < frames; ++number) {
      used += write(number, bytes.data() + used);
      ends.push_back(used);
    }
  }

  std::size_t begin(std::size_t number) const { return number == 0 ? 0 : ends[number - 1]; }
};

void measure_codec(const std::string& name, FrameCodec::InstructionSet instruction_set,
                   const Bytes& play) {
  const FrameCodec codec({{84, 84}, DType::kUint8}, instruction_set);
  auto workspace = codec.new_workspace();
  const std::size_t frames = play.size() / kFrame - 1;  // each with one that follows
  const auto frame = [&](std::size_t number) { return play.data() + number * kFrame; };
  const auto change = [&](std::size_t number, std::byte* code) {
    return codec.encode(frame(number), frame(number + 1), code, workspace);
  };
  const auto key = [&](std::size_t number, std::byte* code) {
    return codec.encode_key(frame(number), code, workspace);
  };
  Bytes code(codec.code_nbytes() + FrameCodec::kCodeSlack);
  Bytes target(kFrame);
  std::cout << name;
  const auto print = [&](const auto& work) {
    const double microseconds = timed([&] {
      for (std::size_t number = 0; number < frames; ++number) work(number);
    });
    std::cout << '\t' << microseconds / static_cast<double>(frames);
  };
  const auto check = [&](std::size_t number) {
    if (std::memcmp(target.data(), frame(number), kFrame) != 0) {
      std::cerr << name << ": a frame was read wrong\n";
      std::exit(1);
    }
  };

  const Codes changes(frames, codec.code_nbytes(), change);
  const auto apply = [&](std::size_t number) {
    const std::size_t begin = changes.begin(number);
    codec.apply(changes.bytes.data() + begin, changes.ends[number] - begin, target.data());
  };
  std::memcpy(target.data(), frame(0), kFrame);
  for (std::size_t number = 0; number < frames; ++number) {
    apply(number);
    check(number + 1);
  }
  print([&](std::size_t number) { change(number, code.data()); });
  print(apply);

  const Codes keys(frames, codec.code_nbytes(), key);
  const auto decode = [&](std::size_t number) {
    const std::size_t begin = keys.begin(number);
    codec.decode_key(keys.bytes.data() + begin, keys.ends[number] - begin, target.data());
  };
  for (std::size_t number = 0; number < frames; ++number) {
    decode(number);
    check(number);
  }
  print([&](std::size_t number) { key(number, code.data()); });
  print(decode);
  std::cout << '\n';
}

void measure_codecs(const Bytes& play) {
  using Set = FrameCodec::InstructionSet;
  const std::pair<Set, std::string> sets[] = {
      {Set::kPortable, "portable"}, {Set::kBmi2, "BMI2"}, {Set::kAvx512, "AVX-512 VBMI2"}};
  for (const auto& [set, name] : sets) {
    if (set <= FrameCodec::best_instruction_set()) measure_codec(name, set, play);
  }
}

void measure_schemes(const Bytes& play) {
  measure_raw(play);
  const auto key_as_it_is = [](Scheme scheme) {
    scheme.encode_key = [](const std::byte* frame, std::byte* code) {
      std::memcpy(code, frame, kFrame);
      return kFrame;
    };
    scheme.decode_key = [](const std::byte* code, std::size_t, std::byte* frame) {
      std::memcpy(frame, code, kFrame);
    };
    return scheme;
  };
  const auto words = [&]<class Word>(std::string name, Word) {
    const WordCodec<Word> codec;
    measure(key_as_it_is({std::move(name), 32, false, false, 1e9,
                          [=](auto a, auto b, auto c) { return codec.encode(a, b, c); },
                          [=](auto a, auto b, auto c) { codec.apply(a, b, c); }, {}, {}}),
            play);
  };
  words("words of 8 bytes, groups of 32", std::uint64_t{});
  words("words of 4 bytes, groups of 32", std::uint32_t{});

  const FrameCodec codec({{84, 84}, DType::kUint8}, FrameCodec::best_instruction_set());
  auto workspace = codec.new_workspace();
  const auto tree = [&](std::string name, std::size_t frames, bool key_in_middle, bool from_key,
                        double full) {
    return Scheme{std::move(name), frames, key_in_middle, from_key, full,
                  [&](auto a, auto b, auto c) { return codec.encode(a, b, c, workspace); },
                  [&](auto a, auto b, auto c) { codec.apply(a, b, c); },
                  [&](auto a, auto b) { return codec.encode_key(a, b, workspace); },
                  [&](auto a, auto b, auto c) { codec.decode_key(a, b, c); }};
  };
  measure(key_as_it_is(tree("tree, groups of 32, key first, as it is", 32, false, false, 1e9)),
          play);
  measure(tree("tree, groups of 32, key first", 32, false, false, 1e9), play);
  measure(tree("tree, groups of 32, changes from the key", 32, false, true, 1e9), play);
  for (const std::size_t frames : {8U, 16U, 32U, 64U, 128U}) {
    measure(tree("tree, groups of " + std::to_string(frames), frames, true, false, 1e9), play);
  }
  measure(tree("tree, groups of 32 or half a frame", 32, true, false, 0.5), play);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const std::string mode = arguments[1];
  std::ifstream file(arguments[2], std::ios::binary | std::ios::ate);
  Bytes play(static_cast<std::size_t>(file.tellg()) / kFrame * kFrame);
  file.seekg(0);
  file.read(reinterpret_cast<char*>(play.data()), static_cast<std::streamsize>(play.size()));
  if (!file) return 2;
  if (mode == "schemes") {
    measure_schemes(play);
  } else if (mode == "codec") {
    measure_codecs(play);
  } else {
    return 2;
  }
  return 0;
}
