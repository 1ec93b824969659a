#include "fastdqn/frame_group.hpp"

#include <algorithm>
#include <cstring>

namespace fastdqn {

namespace {

constexpr std::size_t kCacheLine = 64;

void prefetch_line(const std::byte* address) noexcept {
#if defined(__GNUC__)
  __builtin_prefetch(address);
#else
  (void)address;
#endif
}

/// The lengths of a group's parts.
class Lengths {
 public:
  Lengths(const std::byte* data, std::size_t length_nbytes) noexcept
      : data_(data), length_nbytes_(length_nbytes) {}

  std::size_t operator[](std::size_t part) const noexcept {
    if (length_nbytes_ == 2) return load<std::uint16_t>(part);
    return load<std::uint32_t>(part);
  }
  std::size_t sum(std::size_t begin, std::size_t end) const noexcept {
    std::size_t total = 0;
    for (std::size_t part = begin; part < end; ++part) total += (*this)[part];
    return total;
  }

 private:
  template <class Length>
  std::size_t load(std::size_t part) const noexcept {
    Length length;
    std::memcpy(&length, data_ + part * sizeof(length), sizeof(length));
    return length;
  }

  const std::byte* data_;
  std::size_t length_nbytes_;
};

/// Where frames are read to.
struct Frames {
  std::byte* first_frame;
  std::size_t first;
  std::ptrdiff_t stride;
  std::size_t nbytes;

  std::byte* operator[](std::size_t frame) const noexcept {
    return first_frame + static_cast<std::ptrdiff_t>(frame - first) * stride;
  }
  std::byte* copy(std::size_t from, std::size_t to) const noexcept {
    std::memcpy((*this)[to], (*this)[from], nbytes);
    return (*this)[to];
  }
};

/// From frame `known`, which lies where the first wanted one goes, back to `first`; `code` ends
/// with the change to `known`, whose length is lengths(known).
template <class LengthTo>
void read_back(const FrameCodec& codec, std::size_t known, std::size_t first, std::size_t last,
               const std::byte* code, LengthTo length_to, const Frames& frames) noexcept {
  const std::size_t nearest = std::min(known, last);
  for (std::size_t frame = known; frame > nearest; --frame) {
    code -= length_to(frame);
    codec.apply(code, length_to(frame), frames[nearest]);
  }
  for (std::size_t frame = nearest; frame > first; --frame) {
    code -= length_to(frame);
    codec.apply(code, length_to(frame), frames.copy(frame, frame - 1));
  }
}

}  // namespace

// -- a group ----------------------------------------------------------------------------------

bool FrameGroup::is_valid(std::size_t nbytes) const noexcept {
  const std::size_t lengths_nbytes = frames_ * length_nbytes(codec_);
  if (frames_ == 0 || frames_ > kGroupFrames || nbytes < lengths_nbytes) return false;
  const Lengths lengths(data_, length_nbytes(codec_));
  const std::byte* code = data_ + lengths_nbytes;
  std::size_t left = nbytes - lengths_nbytes;
  for (std::size_t part = 0; part < frames_; ++part) {
    const std::size_t length = lengths[part];
    if (length > left || !codec_.is_valid(code, length)) return false;
    code += length;
    left -= length;
  }
  return left == 0;
}

void FrameGroup::read(std::size_t first, std::size_t count, std::byte* target,
                      std::ptrdiff_t stride) const noexcept {
  const std::size_t last = first + count - 1;
  const std::size_t key = key_of(frames_);
  const Lengths lengths(data_, length_nbytes(codec_));
  const std::byte* code = data_ + frames_ * length_nbytes(codec_) + lengths.sum(0, key);
  const Frames frames{target, first, stride, codec_.frame_nbytes()};
  const std::size_t nearest = std::clamp(key, first, last);
  codec_.decode_key(code, lengths[key], frames[nearest]);
  if (first < key) {
    read_back(codec_, key, first, last, code, [&](std::size_t to) { return lengths[to - 1]; },
              frames);
  }
  code += lengths[key];
  for (std::size_t frame = key + 1; frame <= nearest; ++frame) {
    codec_.apply(code, lengths[frame], frames[nearest]);
    code += lengths[frame];
  }
  for (std::size_t frame = std::max(key, nearest) + 1; frame <= last; ++frame) {
    codec_.apply(code, lengths[frame], frames.copy(frame - 1, frame));
    code += lengths[frame];
  }
}

void FrameGroup::prefetch_lengths() const noexcept {
  const std::byte* end = data_ + frames_ * length_nbytes(codec_);
  for (const std::byte* line = data_; line < end; line += kCacheLine) prefetch_line(line);
  prefetch_line(end - 1);
}

void FrameGroup::prefetch(std::size_t first, std::size_t count) const noexcept {
  const std::size_t key = key_of(frames_);
  const Lengths lengths(data_, length_nbytes(codec_));
  // Part p before the key is the change to frame p + 1; behind it, to frame p.
  const std::size_t begin = std::min(first, key);
  const std::size_t end = std::max(first + count - 1, key) + 1;
  const std::byte* code = data_ + frames_ * length_nbytes(codec_) + lengths.sum(0, begin);
  const std::byte* code_end = code + lengths.sum(begin, end);
  for (; code < code_end; code += kCacheLine) prefetch_line(code);
}

// -- a group that grows -----------------------------------------------------------------------

void OpenGroup::reserve(const FrameCodec& codec) {
  newest_.resize(codec.frame_nbytes());
  const std::size_t needed = used_ + codec.code_nbytes() + FrameCodec::kCodeSlack;
  if (codes_.size() < needed) codes_.resize(needed + needed / 2);
}

void OpenGroup::add(const FrameCodec& codec, const std::byte* frame,
                    FrameCodec::Workspace& workspace) noexcept {
  if (frames_ > 0) {
    const std::size_t length = codec.encode(newest_.data(), frame, codes_.data() + used_, workspace);
    lengths_[frames_] = static_cast<std::uint32_t>(length);
    used_ += length;
  }
  std::memcpy(newest_.data(), frame, newest_.size());
  ++frames_;
}

void OpenGroup::read(const FrameCodec& codec, std::size_t first, std::size_t count,
                     std::byte* target, std::ptrdiff_t stride) const noexcept {
  const std::size_t last = first + count - 1;
  const Frames frames{target, first, stride, codec.frame_nbytes()};
  std::memcpy(frames[last], newest_.data(), newest_.size());
  read_back(codec, frames_ - 1, first, last, codes_.data() + used_,
            [&](std::size_t to) { return lengths_[to]; }, frames);
}

std::size_t OpenGroup::write(const FrameCodec& codec, std::byte* target, std::byte* frame,
                             FrameCodec::Workspace& workspace) const noexcept {
  const std::size_t length_nbytes = FrameGroup::length_nbytes(codec);
  const std::size_t key = FrameGroup::key_of(frames_);
  read(codec, key, 1, frame, 0);
  std::byte* length = target;
  const auto put_length = [&](std::size_t value) {
    const auto narrow = static_cast<std::uint32_t>(value);
    std::memcpy(length, &narrow, length_nbytes);  // little-endian: its low bytes
    length += length_nbytes;
  };
  std::byte* out = target + frames_ * length_nbytes;
  const std::byte* code = codes_.data();
  const auto put_changes = [&](std::size_t begin, std::size_t end) {
    for (std::size_t to = begin; to < end; ++to) {
      put_length(lengths_[to]);
      std::memcpy(out, code, lengths_[to]);
      out += lengths_[to];
      code += lengths_[to];
    }
  };
  put_changes(1, key + 1);
  const std::size_t key_nbytes = codec.encode_key(frame, out, workspace);
  put_length(key_nbytes);
  out += key_nbytes;
  put_changes(key + 1, frames_);
  return static_cast<std::size_t>(out - target);
}

}  // namespace fastdqn
