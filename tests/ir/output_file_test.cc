#include "ir/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/ir/file_testing.h"
#include "tests/ir/thrown.h"

namespace shardc {
namespace {

namespace fs = std::filesystem;
using testing::IdThrownBy;
using testing::ReadBytes;
using testing::TemporaryFolder;
using testing::TextThrownBy;
using testing::WriteBytes;

// For root everything may be written.
class AsSomebody {
 public:
  AsSomebody() {
    constexpr uid_t kNobody = 65534;
    EXPECT_EQ(seteuid(user_ == 0 ? kNobody : user_), 0);
  }
  ~AsSomebody() { EXPECT_EQ(seteuid(user_), 0); }

 private:
  const uid_t user_ = geteuid();
};

// Whatever is not noticed now is noticed when all is computed, and lost with it.
TEST(OutputFileTest, WhatMustStayIsNoticedBeforeThereIsAnythingToWrite) {
  TemporaryFolder folder;
  fs::create_directory(folder.File("old"));
  EXPECT_EQ(TextThrownBy([&] { WholeFile::Check(folder.File("old")); }),
            "E5003 " + folder.File("old") + ": cannot write: Is a directory; give a file");

  WriteBytes(folder.File("kept"), "kept");
  chmod(folder.File("kept").c_str(), 0444);
  chmod(folder.path().c_str(), 0777);
  {
    AsSomebody somebody;
    EXPECT_EQ(TextThrownBy([&] { WholeFile::Check(folder.File("kept")); }),
              "E5003 " + folder.File("kept") +
                  ": cannot write: Permission denied; give this user the right to write "
                  "there, or choose another place");
    WholeFile::Check(folder.File("new"));
  }
}

TEST(OutputFileTest, FilesOfOthersStayInSharedFolders) {
  if (geteuid() != 0) GTEST_SKIP() << "there is no other user";
  TemporaryFolder folder;
  WriteBytes(folder.File("theirs"), "theirs");
  chmod(folder.File("theirs").c_str(), 0666);
  chmod(folder.path().c_str(), 01777);
  AsSomebody somebody;
  EXPECT_EQ(IdThrownBy([&] { WholeFile::Check(folder.File("theirs")); }), "E5003");
  WholeFile::Check(folder.File("new"));
}

TEST(OutputFileTest, WhatIsReplacedKeepsItsPermissions) {
  TemporaryFolder folder;
  const std::string path = folder.File("private");
  WriteBytes(path, "old");
  chmod(path.c_str(), 0600);
  WholeFile file(path);
  file.Write("new");
  file.Commit();
  EXPECT_EQ(ReadBytes(path), "new");
  struct stat is = {};
  ASSERT_EQ(stat(path.c_str(), &is), 0);
  EXPECT_EQ(is.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace shardc
