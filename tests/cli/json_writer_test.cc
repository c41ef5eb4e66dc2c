#include "cli/json_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace ringroad::cli {
namespace {

using nlohmann::json;

TEST(JsonWriter, WritesWhatAParserReads) {
  std::string text;
  JsonWriter out(text);
  out.begin_object(true).member("a", 1).member("b", std::string("x")).key("c").begin_array(true);
  out.value(std::uint64_t{18446744073709551615U}).value(-5).value(true).value(1.25).null();
  out.begin_object().end_object().begin_array().end_array().end_array();
  out.key("d").begin_object().member("e", false).member("f", "g").end_object().end_object();
  EXPECT_EQ(json::parse(text), json::parse(R"({"a": 1, "b": "x",
      "c": [18446744073709551615, -5, true, 1.25, null, {}, []], "d": {"e": false, "f": "g"}})"));
}

// Against the parser, which takes no text that is not UTF-8.
TEST(JsonWriter, EveryTextBecomesValidUtf8) {
  const auto written = [](const std::string& content) {
    std::string text;
    JsonWriter(text).value(content);
    return json::parse(text).get<std::string>();
  };
  EXPECT_EQ(written("a\"b\\c\n\x01\x7f"), "a\"b\\c\n\x01\x7f");
  EXPECT_EQ(written("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80"),
            "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80");
  const std::string unknown = "\xef\xbf\xbd";
  EXPECT_EQ(written("a\xff"
                    "b"),
            "a" + unknown + "b");
  EXPECT_EQ(written("\xc3"), unknown);
  EXPECT_EQ(written("\xc0\x80"), unknown + unknown);                // overlong
  EXPECT_EQ(written("\xed\xa0\x80"), unknown + unknown + unknown);  // a surrogate
  EXPECT_EQ(written("\xf4\x90\x80\x80"), unknown + unknown + unknown + unknown);
  for (int a = 1; a < 256; ++a) {
    for (int b = 1; b < 256; ++b) {
      const std::string pair = {static_cast<char>(a), static_cast<char>(b), 'x'};
      EXPECT_NO_THROW(written(pair)) << a << " " << b;
    }
  }
}

}  // namespace
}  // namespace ringroad::cli
