"""Words for the patterns of ``templates``."""

from __future__ import annotations

from training.spelling import listed

MONTHS = listed(
    "January February March April May June July August September October November December"
)
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
NAMES = listed(
    "James Mary Robert Patricia John Jennifer Michael Linda David Elizabeth William Barbara "
    "Richard Susan Joseph Jessica Thomas Sarah Christopher Karen Charles Lisa Daniel Nancy "
    "Matthew Betty Anthony Sandra Mark Margaret Donald Ashley Steven Kimberly Andrew Emily Paul "
    "Donna Joshua Michelle Kenneth Carol Kevin Amanda Brian Melissa George Deborah Timothy "
    "Stephanie Ronald Rebecca Jason Sharon Edward Laura Jeffrey Cynthia Ryan Dorothy Jacob Amy "
    "Gary Kathleen Nicholas Angela Eric Shirley Jonathan Emma Stephen Brenda Larry Pamela Justin "
    "Nicole Scott Anna Brandon Samantha Benjamin Katherine Samuel Christine Gregory Helen "
    "Alexander Debra Patrick Rachel Frank Carolyn Raymond Janet Jack Maria Dennis Catherine Jerry "
    "Heather Tyler Diane Aaron Olivia Jose Julie Adam Joyce Nathan Victoria Henry Ruth Zachary "
    "Virginia Douglas Lauren Peter Kelly Kyle Christina Noah Joan Ethan Evelyn Jeremy Judith "
    "Walter Andrea Christian Hannah Keith Megan Roger Cheryl Terry Jacqueline Austin Martha Sean "
    "Madison Gerald Teresa Carl Gloria Harold Sara Dylan Janice Arthur Ann Lawrence Kathryn "
    "Jordan Abigail Jesse Sophia Bryan Frances Billy Jean Bruce Alice Gabriel Judy Joe Isabella "
    "Logan Julia Alan Grace Juan Amber Albert Denise Willie Danielle Elijah Marilyn Wayne Beverly "
    "Randy Charlotte Vincent Natalie Mason Theresa Roy Diana Ralph Brittany Bobby Doris Russell "
    "Kayla Bradley Alexis Philip Lori Eugene Marie Carla Liam Tina Wendy Zoe Maya Nora Oscar "
    "Fiona Chloe Ian Leo Simon Amelia Lucas Quinn Yvonne Priscilla Leonard Theodore Ben Kate Alex "
    "Isabel Tracy Ursula Victor"
)
SURNAMES = listed(
    "Smith Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez Hernandez Lopez "
    "Gonzalez Wilson Anderson Thomas Taylor Moore Jackson Martin Lee Perez Thompson White Harris "
    "Sanchez Clark Ramirez Lewis Robinson Walker Young Allen King Wright Scott Torres Nguyen Hill "
    "Flores Green Adams Nelson Baker Hall Rivera Campbell Mitchell Carter Roberts Gomez Phillips "
    "Evans Turner Diaz Parker Cruz Edwards Collins Reyes Stewart Morris Morales Murphy Cook "
    "Rogers Gutierrez Ortiz Morgan Cooper Peterson Bailey Reed Kelly Howard Ramos Kim Cox Ward "
    "Richardson Watson Brooks Chavez Wood James Bennett Gray Mendoza Ruiz Hughes Price Alvarez "
    "Castillo Sanders Patel Myers Long Ross Foster Jimenez Powell Jenkins Perry Russell Sullivan "
    "Bell Coleman Butler Henderson Barnes Gonzales Fisher Vasquez Simmons Graham Murray Ford "
    "Castro Marshall Owens Harrison Fernandez McDonald Woods Washington Kennedy Wells Vargas "
    "Henry Chen Freeman Webb Tucker Guzman Burns Crawford Olson Simpson Porter Hunter Gordon "
    "Mendez Silva Shaw Snyder Mason Dixon Munoz Hunt Hicks Holmes Palmer Wagner Black Robertson "
    "Boyd Stone Salazar Fox Warren Mills Meyer Rice Schmidt Garza Daniels Ferguson Nichols "
    "Stephens Soto Weaver Ryan Gardner Payne Grant Dunn Kelley Spencer Hawkins Arnold Pierce "
    "Hansen Peters Santos Hart Bradley Knight Elliott Cunningham Duncan Armstrong Hudson Carroll "
    "Lane Riley Andrews Berry Perkins Hoffman Johnston Matthews Pena Richards Willis Carpenter "
    "Lawrence Sandoval Fitzgerald"
)
CITIES = [
    *listed(
        "London Paris Boston Chicago Denver Seattle Austin Dallas Atlanta Berlin Madrid Rome "
        "Tokyo Sydney Toronto Dublin Houston Phoenix Portland Miami Orlando Vienna Oslo Geneva "
        "Amsterdam Lisbon Prague Athens Stockholm Brussels Munich Milan Barcelona Montreal "
        "Vancouver Melbourne Singapore Mumbai Delhi Cairo Nairobi Lima Detroit Cleveland "
        "Nashville Memphis Baltimore"
    ),
    "New York",
    "Los Angeles",
    "San Francisco",
    "Las Vegas",
    "Hong Kong",
    "Mexico City",
]
COUNTRIES = listed(
    "Ireland France Germany Spain Italy Japan China India Canada Mexico Brazil Australia England "
    "Scotland Poland Norway Sweden Finland Greece Turkey Egypt Kenya Argentina Portugal Austria"
)
ITEMS = listed(
    "order package parcel laptop phone camera jacket backpack ticket refund invoice subscription "
    "keyboard headset blender toaster bicycle lamp chair table mattress printer tablet router "
    "charger delivery payment receipt booking reservation appointment account password message "
    "membership contract prescription claim application device battery request profile address"
)
ADJECTIVES = listed(
    "new large small quick slow warm cold bright dark quiet loud happy careful simple strange "
    "modern old early late heavy light fresh clean green blue red yellow white black gray orange "
    "purple brown silver round smooth rough soft sharp sweet empty narrow wide hungry friendly "
    "curious gentle brave clever tiny enormous beautiful wooden broken rare thick thin lazy tall"
)
NOUNS = listed(
    "river mountain garden window kitchen teacher doctor engineer driver student farmer neighbor "
    "brother sister mother father friend child dog cat horse bird fish tree flower road bridge "
    "school office market station airport hospital library museum castle island village ocean "
    "forest desert cloud storm summer winter morning evening story picture song letter book paper "
    "machine engine computer table chair door house street train boat ship plane car truck bottle "
    "glass plate knife spoon bread butter cheese apple orange lemon coffee tea water milk sugar "
    "salt soup dinner lunch breakfast rice chicken bowl fox canoe plank sheet well grandmother "
    "grandfather uncle aunt cousin guitar piano violin box ring coat shoe hat pocket wallet clock "
    "mirror candle blanket pillow carpet ladder hammer rope basket fence roof wall floor ceiling"
)
PLURALS = listed(
    "boxes letters apples bottles chairs birds houses pictures stones tickets bowls planks leaves "
    "horses dishes watches knives shelves buses glasses cookies potatoes pencils buttons windows"
)
VERBS = listed(
    "found watched followed painted cleaned carried opened closed lifted moved visited crossed "
    "reached noticed remembered ignored described repaired borrowed returned bought sold chose "
    "counted measured dropped touched covered protected explored wrote drew built broke caught "
    "brought taught kept left lost met paid put read sent showed threw told took washed wore"
)
DOMAINS = listed(
    "example gmail company outlook support hello mail acme sunrise blueocean greenfield northwind "
    "city library school office travel market photo music weather bank health"
)
ENDINGS = ["com", "org", "net", "edu", "co", "io"]
LETTERS = listed("A B C D E F G H I J K L M N O P Q R S T U V W X Y Z")


def proper_names() -> list[str]:
    """Words of people, places, months and days, lower case."""
    names = [*NAMES, *SURNAMES, *CITIES, *COUNTRIES, *MONTHS, *DAYS, *DOMAINS]
    return sorted({word.lower() for name in names for word in name.split()})
