// The on-disk format: what was written comes back, any damage is one clear error, and a save that
// fails leaves what was there before.

#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "check.hpp"
#include "fastdqn/snapshot.hpp"
#include "snapshot_support.hpp"

namespace {

using namespace fastdqn;

/// CRC-32C of "123456789", the check value that every catalogue of checksums gives.
void checksums() {
  CHECK(checksum("123456789", 9) == 0xE3069283);
  CHECK(checksum("", 0) == 0);
  const std::string text = "thirty-two characters of no note";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::uint32_t begun = checksum(text.data(), cut);
    CHECK(checksum(text.data() + cut, text.size() - cut, begun) ==
          checksum(text.data(), text.size()));
  }
}

void write(const std::string& path, const std::string& first, const std::string& second) {
  SnapshotWriter writer(path);
  writer.write_section("first", first.data(), first.size());
  writer.write_section("eightchr", second.data(), second.size());
  writer.commit();
}

std::string read(SnapshotReader& reader, const char* name) {
  std::string out(reader.section_nbytes(name), '?');
  reader.read_section(name, out.data(), out.size());
  return out;
}

void sections_come_back() {
  const TemporaryFolder folder;
  const std::string path = folder / "snapshot";
  const std::string long_one(3'000'001, 'x');  // several chunks
  write(path, "", long_one);
  SnapshotReader reader(path);
  CHECK(read(reader, "eightchr") == long_one);
  CHECK(read(reader, "first").empty());
  char byte = 0;
  CHECK_THROWS(reader.read_section("first", &byte, 1), SnapshotError, "has 0 bytes; expected 1");
  CHECK_THROWS(reader.section_nbytes("third"), SnapshotError, "section \"third\" is missing");
  write(path, "new", "");
  SnapshotReader again(path);
  CHECK(read(again, "first") == "new");
  CHECK(folder.num_files() == 1);
}

/// Whether the whole file reads without an error; the error has to name the file.
std::optional<std::string> error_of(const std::string& path) {
  try {
    SnapshotReader reader(path);
    read(reader, "first");
    read(reader, "eightchr");
    return std::nullopt;
  } catch (const SnapshotError& error) {
    const std::string what = error.what();
    CHECK(what.starts_with(path + ": "));
    return what.substr(path.size() + 2);
  }
}

void every_damage_is_found() {
  const TemporaryFolder folder;
  const std::string path = folder / "snapshot";
  write(path, "some bytes", "and some more");
  const std::string whole = read_file(path);
  CHECK(!error_of(path));
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    write_file(path, damaged);
    CHECK(error_of(path));
  }
  for (std::size_t nbytes = 0; nbytes < whole.size(); ++nbytes) {
    write_file(path, whole.substr(0, nbytes));
    CHECK(error_of(path)->starts_with("the file is cut short: "));
  }
  write_file(path, whole + "x");
  CHECK(error_of(path)->starts_with("the snapshot ends at byte "));
  write_file(path, std::string(1000, 'x'));
  CHECK(*error_of(path) == "this is not a snapshot of fastdqn");
  write_file(path, std::string(whole).replace(whole.find("some bytes"), 4, "sane"));
  CHECK(*error_of(path) == "section \"first\" is damaged");
}

std::string little_endian(std::uint64_t value, std::size_t nbytes) {
  std::string out;
  for (std::size_t i = 0; i < nbytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

std::string with_checksum(const std::string& bytes) {
  return bytes + little_endian(checksum(bytes.data(), bytes.size()), 4);
}

std::string section_header(std::string name, std::uint64_t nbytes) {
  name.resize(8, '\0');
  return with_checksum(name + little_endian(nbytes, 8));
}

/// Made with care, checksums and all: lengths are not believed either way.
void forged_lengths() {
  const TemporaryFolder folder;
  const std::string path = folder / "snapshot";
  write(path, "some bytes", "");
  const std::string file_header = read_file(path).substr(0, 16);
  CHECK(file_header.substr(8, 4) == little_endian(1, 4));
  for (const std::uint64_t nbytes : {std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
    write_file(path, file_header + section_header("first", nbytes) + std::string(100, 'x'));
    CHECK(*error_of(path) == "section \"first\" claims " + std::to_string(nbytes) +
                                 " bytes, the file has 136");
  }
  write_file(path, file_header + section_header("first", 100) + std::string(100, 'x'));
  CHECK(*error_of(path) ==
        "the file is cut short: section \"first\" would end at byte 140, the file has 136");
  std::string many = file_header;
  for (int i = 0; i < 65; ++i) many += section_header("x", 0) + std::string(4, '\0');
  write_file(path, many);
  CHECK(*error_of(path) == "the file has more than 64 sections");
  write_file(path, with_checksum(file_header.substr(0, 8) + little_endian(2, 4)));
  CHECK(*error_of(path) == "the snapshot has format version 2; expected 1");
}

void files_that_cannot_be_opened() {
  const TemporaryFolder folder;
  CHECK_THROWS(SnapshotReader(folder / "none"), std::system_error, "none: cannot be opened");
  CHECK_THROWS(SnapshotReader(folder / ""), SnapshotError, "not a regular file");
  CHECK_THROWS(SnapshotWriter(folder / "none/snapshot"), std::system_error, "cannot be opened");
  std::filesystem::create_directory(folder / "taken");
  CHECK_THROWS(write(folder / "taken", "", ""), std::system_error, "taken: cannot be replaced");
  CHECK(folder.num_files() == 1);
  CHECK(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS(SnapshotReader(folder / "pipe"), SnapshotError, "not a regular file");
}

void an_attempt_that_ends_early_leaves_nothing() {
  const TemporaryFolder folder;
  const std::string path = folder / "snapshot";
  write(path, "old", "");
  const std::string old = read_file(path);
  {
    SnapshotWriter writer(path);
    writer.write_section("first", "new", 3);
    CHECK(folder.num_files() == 2);
  }
  CHECK(read_file(path) == old);
  CHECK(folder.num_files() == 1);
  write_file(path + ".partial", std::string(5000, 'x'));  // as a kill leaves it
  write(path, "new", "");
  CHECK(folder.num_files() == 1);
  SnapshotReader reader(path);
  CHECK(read(reader, "first") == "new");
}

void one_writer_at_a_time() {
  const TemporaryFolder folder;
  const std::string path = folder / "snapshot";
  {
    SnapshotWriter writer(path);
    CHECK_THROWS(SnapshotWriter(path), SnapshotError, "another save to this path is at work");
    writer.write_section("first", "1", 1);
    writer.write_section("eightchr", "2", 1);
    writer.commit();
  }
  CHECK(!error_of(path));
  write(path, "next", "");
}

/// Whoever comes last, what is in place is whole: no writer gets a file that was renamed away.
void writers_at_once() {
  const TemporaryFolder folder;
  const std::string path = folder / "snapshot";
  write(path, "", "");
  std::atomic<bool> done{false};
  const auto save = [&](char fill) {
    for (std::size_t nbytes = 0; nbytes < 60; ++nbytes) {
      try {
        write(path, std::string(nbytes, fill), std::string(nbytes, fill));
      } catch (const SnapshotError&) {  // the other one is at work
      }
    }
  };
  std::thread reader([&] {
    while (!done) CHECK(!error_of(path));
  });
  std::thread writers[] = {std::thread(save, 'a'), std::thread(save, 'b')};
  for (std::thread& writer : writers) writer.join();
  done = true;
  reader.join();
}

/// A limit on the size of files stands in for a full disk.
void a_full_disk_leaves_what_was_there() {
  const TemporaryFolder folder;
  const std::string path = folder / "snapshot";
  write(path, "old", "");
  const std::string old = read_file(path);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit limit = before;
  limit.rlim_cur = 100'000;
  CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK_THROWS(write(path, std::string(200'000, 'x'), ""), std::system_error,
               "snapshot.partial: cannot be written");
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(read_file(path) == old);
  CHECK(folder.num_files() == 1);
}

}  // namespace

int main() {
  checksums();
  sections_come_back();
  every_damage_is_found();
  forged_lengths();
  files_that_cannot_be_opened();
  an_attempt_that_ends_early_leaves_nothing();
  one_writer_at_a_time();
  writers_at_once();
  a_full_disk_leaves_what_was_there();
}
