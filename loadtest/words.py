"""The 256 words of synthetic text. Knows nothing else.

Common English words: most tokenizers spend one token on each, so a length in words is nearly a length in tokens.
There are exactly 256, so that one byte of a hash picks one word.
"""

_TEXT = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an
    they which one you were all her she there would their we him been has when who will no more if out
    so up said what its about than into them can only other time new some could these two may first then
    do any like my now over such our man me even most made after also did many must before back see
    through way where get much go well your know should down work year because come people just say each
    those take day good how long own little use us great still men here life both between old under last
    never place same another think house while high right might came off found since against thought
    part home around small however left number course war until always away something fact water less
    public put almost hand enough far took head yet government system set better told nothing night end
    why called eyes find going look asked later point knew next city business give group toward young
    days let room word given rather social several order early case large side big face become best need
    form door seen white half light money turn mind name country free line black river north south east
    west green blue red stone tree road paper book music table window summer winter morning garden horse
    ship train bridge market letter story field
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
