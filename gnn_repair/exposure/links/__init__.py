"""Links: a decoder's logit of two nodes as a mixture of one end's messages, the other end fixed."""
