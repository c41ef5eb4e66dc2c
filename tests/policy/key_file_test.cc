// Which users may read the secret that a rule names, and what is said when others may.
#include "policy/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "policy/policy.h"

namespace ringroad::policy {
namespace {

const std::string kSecret = "0123456789abcdef";

class KeyFile : public testing::Test {
 protected:
  KeyFile() {
    char name[] = "/tmp/ringroad-key-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/key";
    write(kSecret + "\n");
  }
  ~KeyFile() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path_, std::ios::binary) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }
  // The key, or "<message (remedy)>".
  std::string read() const {
    Complaint complaint;
    const std::optional<std::string> key = read_key(path_, complaint);
    return key ? *key : "<" + complaint.message + " (" + complaint.remedy + ")>";
  }

  std::string directory_;
  std::string path_;
};

TEST_F(KeyFile, IsTheSecretWithoutItsFinalLineEnd) {
  EXPECT_EQ(read(), kSecret);
  write(kSecret);
  EXPECT_EQ(read(), kSecret);
  write(kSecret + "\r\n");
  EXPECT_EQ(read(), kSecret);
  write(kSecret + "\n\n");
  EXPECT_EQ(read(), kSecret + "\n");
}

TEST_F(KeyFile, ThatOthersMayReadOrChangeIsRefusedWithTheCommandThatMendsIt) {
  for (const mode_t mode : {0604U, 0602U, 0601U, 0644U}) {
    write(kSecret, mode);
    char digits[8];
    std::snprintf(digits, sizeof digits, "%04o", mode);
    EXPECT_EQ(read(), "<the key file \"" + path_ + "\" can be read or changed by others: its mode is " +
                          digits + " (chmod o= " + path_ + ")>");
  }
  write(kSecret, 0660);
  EXPECT_EQ(read(), "<the key file \"" + path_ + "\" can be changed by its group: its mode is 0660 "
                        "(chmod g-w " + path_ + ")>");
  write(kSecret, 0640);
  EXPECT_EQ(read(), kSecret) << "a group may read it, such as the database's";
}

TEST_F(KeyFile, OfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give a file away";
  ASSERT_EQ(chown(path_.c_str(), 65534, 0), 0);
  EXPECT_EQ(read(), "<the key file \"" + path_ + "\" belongs to another user, number 65534 "
                        "(chown root " + path_ + ")>");
}

TEST_F(KeyFile, IsNeitherGuessedNorAnotherFile) {
  write(kSecret.substr(1));
  EXPECT_NE(read().find("holds a key of 15 bytes (it has 16 to 4096; make one: "), std::string::npos)
      << read();
  write(std::string(4096, 'k') + "\n");
  EXPECT_EQ(read().size(), 4096U);
  write(std::string(4097, 'k'));
  EXPECT_NE(read().find("holds a key of more than 4096 bytes"), std::string::npos) << read();
}

TEST_F(KeyFile, ThatIsAFifoDoesNotHoldTheReaderUp) {
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_NE(read().find("is not a regular file"), std::string::npos);
}

TEST_F(KeyFile, OfARuleIsPartOfItAndItsErrorsNameFileAndLine) {
  const std::string text =
      "version = 1\n[[rule]]\nsubnet = \"::/0\"\nkey_file = \"" + path_ + "\"\n";
  const LoadResult loaded = Policy::load_text(text, "p.toml");
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded.policy->rule(0).key_file, path_);
  EXPECT_EQ(loaded.policy->rule(0).key, kSecret);
  write(kSecret, 0644);
  const LoadResult refused = Policy::load_text(text, "p.toml");
  ASSERT_FALSE(refused);
  EXPECT_EQ(to_string(refused.errors.at(0)),
            "p.toml:4:12: error: the key file \"" + path_ +
                "\" can be read or changed by others: its mode is 0644 (chmod o= " + path_ + ")");
}

}  // namespace
}  // namespace ringroad::policy
