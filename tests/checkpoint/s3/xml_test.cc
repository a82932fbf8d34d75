// The XML parser: what S3 sends is read, what is not well-formed or too large is refused.
#include "checkpoint/storage/s3/xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace dtrain::checkpoint::s3::xml_test {
namespace {

TEST(XmlTest, ElementsTextEntitiesAndCommentsAreRead) {
  const auto root = ParseXml(
      "\xef\xbb\xbf<?xml version=\"1.0\" encoding='UTF-8'?>\n<!-- a < comment -->\n"
      "<s3:List xmlns:s3=\"http://x/?a=1&amp;b>2\">\n <Key>a&amp;b&lt;&#233;&#x4E2D;&quot;</Key>\n"
      " <Empty/><Owner ><ID>7</ID></Owner><Key>second</Key><D><![CDATA[<&]]>x</D></s3:List>\n");
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(root->name, "List");
  EXPECT_EQ(root->children.size(), 5U);
  EXPECT_EQ(root->TextOf("Key"), "a&b<\u00e9\u4e2d\"");
  EXPECT_EQ(root->TextOf("Empty"), "");
  ASSERT_NE(root->Child("Owner"), nullptr);
  EXPECT_EQ(root->Child("Owner")->TextOf("ID"), "7");
  EXPECT_EQ(root->TextOf("D"), "<&x");
  EXPECT_EQ(root->Child("Nothing"), nullptr);
}

TEST(XmlTest, WhatIsNotWellFormedIsRefused) {
  for (const char* const text : {"",
                                 "text",
                                 "<a>",
                                 "<a></b>",
                                 "</a>",
                                 "<a/><b/>",
                                 "<a/>text",
                                 "<a>&unknown;</a>",
                                 "<a>&#0;</a>",
                                 "<a>&#xD800;</a>",
                                 "<a>&amp</a>",
                                 "<a></a b>",
                                 "<a></a b='x'>",
                                 "<a b='x></a>",
                                 "< a/>",
                                 "<a>< /a>",
                                 "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>",
                                 "<a><![CDATA[x</a>",
                                 "<!-- x",
                                 "<?x",
                                 "<a$/>"}) {
    const auto root = ParseXml(text);
    EXPECT_TRUE(absl::IsInvalidArgument(root.status())) << text;
  }
}

TEST(XmlTest, SpaceMayStandBeforeTheEndOfATag) {
  const auto root = ParseXml("<a ><b\n>x</b\n></a >");
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(root->TextOf("b"), "x");
}

TEST(XmlTest, DepthElementsAndSizeAreLimited) {
  std::string deepest;
  for (size_t i = 0; i < kXmlDepthMax; ++i) {
    deepest = absl::StrCat("<a>", deepest, "</a>");
  }
  EXPECT_TRUE(ParseXml(deepest).ok());
  EXPECT_FALSE(ParseXml(absl::StrCat("<a>", deepest, "</a>")).ok());
  std::string many = "<a>";
  for (size_t i = 1; i < kXmlElementsMax; ++i) {
    many += "<b/>";
  }
  EXPECT_TRUE(ParseXml(many + "</a>").ok());
  EXPECT_FALSE(ParseXml(many + "<b/></a>").ok());
  EXPECT_FALSE(ParseXml(absl::StrCat("<a>", std::string(kXmlBytesMax, 'x'), "</a>")).ok());
}

}  // namespace
}  // namespace dtrain::checkpoint::s3::xml_test
