#include "fastdqn/backing.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

namespace fastdqn {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t whole_pages(std::size_t nbytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (nbytes + page - 1) / page * page;
}

class AnonymousBacking final : public Backing {
 public:
  ~AnonymousBacking() override {
    for (const auto& [data, nbytes] : pieces_) munmap(data, nbytes);
  }

  std::byte* extend(std::size_t nbytes) override {
    nbytes = whole_pages(nbytes);
    pieces_.reserve(pieces_.size() + 1);
    // Asked for with room to spare, of which what lies before a huge page's beginning goes back.
    const std::size_t spare = nbytes < kHugePage ? 0 : kHugePage;
    void* mapped = mmap(nullptr, nbytes + spare, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw OutOfMemory("the system refused " + std::to_string(nbytes) +
                        " bytes of memory for the frames");
    }
    auto* data = static_cast<std::byte*>(mapped);
    if (spare > 0) {
      const std::size_t before = (0 - reinterpret_cast<std::uintptr_t>(data)) % kHugePage;
      if (before > 0) munmap(data, before);
      data += before;
      if (before < spare) munmap(data + nbytes, spare - before);
    }
#ifdef MADV_HUGEPAGE
    // Random rows from gigabytes miss the TLB at every 4 KiB page; a refusal costs speed only.
    (void)madvise(data, nbytes, MADV_HUGEPAGE);
#endif
    pieces_.push_back({data, nbytes});
    return data;
  }

  void written(const std::byte*, std::size_t) noexcept override {}
  void read_ahead(const std::byte*, std::size_t) const noexcept override {}

 private:
  struct Piece {
    std::byte* data;
    std::size_t nbytes;
  };
  std::vector<Piece> pieces_;
};

}  // namespace

std::unique_ptr<Backing> anonymous_backing() { return std::make_unique<AnonymousBacking>(); }

}  // namespace fastdqn
