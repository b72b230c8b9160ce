"""The plugins that come with Trunkline: providers, tools and coding programs, and one-file plugins to enable.

In: the public modules of ``gateway``. Out: classes with hooks and contributions. The plugin loader and tests
import them.
"""
