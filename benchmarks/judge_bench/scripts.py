# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501
"""What is said. ``{right|wrong}`` is a value and the one that a wrong read-back has in its place.

Two sets, apart: thresholds were chosen on CALIBRATION, the numbers that are reported are of TEST.
"""

from __future__ import annotations

CALIBRATION = [
    [
        (
            "agent",
            "Thank you for calling Lakeside Dental, this is the scheduling assistant, how can I help you today?",
        ),
        ("user", "Hi, I need to move my appointment to another day."),
        (
            "agent",
            "Of course. I see your cleaning is booked for {Monday|Tuesday} at {ten fifteen|ten fifty} in the morning.",
        ),
        ("user", "That is right, but something came up at work."),
        (
            "agent",
            "No problem at all. I can offer you {March fifteenth|March fiftieth} at {two thirty|two thirteen} in the afternoon.",
        ),
        ("user", "The afternoon would be good for me."),
        (
            "agent",
            "Great, I have moved your visit. The fee for the cleaning will be {eighty|eighteen} dollars this time.",
        ),
        ("user", "Does my insurance cover any of that?"),
        (
            "agent",
            "Your plan covers {sixty|sixteen} percent, so you would pay the rest when you arrive at the front desk.",
        ),
        ("user", "Perfect, thank you so much for your help."),
        ("agent", "You are very welcome. We look forward to seeing you at the clinic, have a wonderful day."),
    ],
    [
        (
            "agent",
            "Good morning, you have reached the pharmacy line. May I have the name of your medication please?",
        ),
        ("user", "It is the one for my blood sugar, I think."),
        (
            "agent",
            "I can see a prescription for {metformin|metoprolol}, {five hundred|nine hundred} milligrams, to be taken twice a day.",
        ),
        ("user", "Yes, that is the one I am looking for."),
        (
            "agent",
            "It was last filled on {June third|July third}, and you have {two|four} refills remaining on this prescription.",
        ),
        ("user", "Can I pick it up this afternoon?"),
        (
            "agent",
            "It will be ready at {four|nine} o'clock today, and the total comes to {thirty|thirteen} dollars.",
        ),
        ("user", "Okay, and where are you located again?"),
        (
            "agent",
            "We are at {nineteen|ninety} Garden Street, right next to the central library and the post office.",
        ),
        ("user", "Great, see you later then."),
        (
            "agent",
            "Thank you for calling, and please remember to bring a photo ID when you come to collect it.",
        ),
    ],
    [
        (
            "agent",
            "Welcome to Northern Rail customer care, I can help you with bookings, refunds and timetables.",
        ),
        ("user", "I would like to know about the train to the coast."),
        (
            "agent",
            "The next direct train leaves from platform {six|nine} at {seven forty|seven fourteen} this evening.",
        ),
        ("user", "How long does the journey take?"),
        (
            "agent",
            "It takes about {two|three} hours and {fifty|fifteen} minutes with one short stop on the way.",
        ),
        ("user", "That sounds fine, how much is a ticket?"),
        (
            "agent",
            "A standard single is {seventeen|seventy} pounds, and first class is an extra {twelve|twenty} pounds.",
        ),
        ("user", "I will take one standard ticket please."),
        (
            "agent",
            "Wonderful. Your booking reference is {eight four two seven|eight four two one}, I will send it by message.",
        ),
        ("user", "Lovely, thanks a lot."),
        ("agent", "You are welcome, and I hope you enjoy your trip to the seaside this weekend."),
    ],
    [
        (
            "agent",
            "Hello and thanks for calling City Power, I am the automated assistant for billing and outages.",
        ),
        ("user", "My bill seems a lot higher than usual this month."),
        (
            "agent",
            "I am sorry to hear that. Your latest bill is {one hundred forty|one hundred fourteen} dollars, due on {Friday|Thursday}.",
        ),
        ("user", "Why did it go up so much?"),
        (
            "agent",
            "Your usage went up by {thirty|thirteen} percent compared with {September|October}, mostly in the evening hours.",
        ),
        ("user", "I see, can I pay it in two parts?"),
        (
            "agent",
            "Yes, you can pay {seventy|seventeen} dollars now and the rest by {May twentieth|May twelfth} without any fee.",
        ),
        ("user", "Let us do that then."),
        (
            "agent",
            "All right, I have set up the plan for the account ending in {five five one nine|five five nine one}.",
        ),
        ("user", "Thank you, that helps me a lot."),
        ("agent", "I am glad that I could help, please call us again whenever you have a question."),
    ],
]

TEST = [
    [
        ("agent", "Good afternoon, this is Riverside Family Clinic, how may I direct your call today?"),
        ("user", "I want to check the date of my next appointment."),
        (
            "agent",
            "Your appointment with Doctor Keller is on {Wednesday|Thursday}, {April sixteenth|April sixtieth}, at {three fifteen|three fifty}.",
        ),
        ("user", "Do I have to bring anything with me?"),
        (
            "agent",
            "Please bring your insurance card and arrive {fifteen|fifty} minutes early to fill in the new forms.",
        ),
        ("user", "And should I still take my pills that morning?"),
        (
            "agent",
            "Yes, keep taking {lisinopril|losartan}, {twenty|seventy} milligrams, with a full glass of water after breakfast.",
        ),
        ("user", "Is there parking near the building?"),
        (
            "agent",
            "There is a garage on {fortieth|fourteenth} street, and the first {ninety|nineteen} minutes are free of charge.",
        ),
        ("user", "Very good, thank you for the information."),
        ("agent", "It was my pleasure to help you. Take care, and we will see you soon at the clinic."),
    ],
    [
        (
            "agent",
            "Thanks for calling Harbor Hotel reservations, I would be happy to help you plan your stay.",
        ),
        ("user", "I need a room for two people next weekend."),
        (
            "agent",
            "We have a sea view room from {Saturday|Sunday} for {one hundred sixty|one hundred sixteen} dollars per night.",
        ),
        ("user", "Is breakfast included in the price?"),
        (
            "agent",
            "Breakfast is served from {seven|eleven} to {ten thirty|ten thirteen} and costs another {fourteen|forty} dollars per person.",
        ),
        ("user", "All right, please book the room for us."),
        (
            "agent",
            "The room is booked for {two|five} nights, from {August eighth|August tenth}, under the name of Miller.",
        ),
        ("user", "What is the confirmation number?"),
        (
            "agent",
            "Your confirmation number is {nine three six one|nine three six seven}, and I have sent it to your email address.",
        ),
        ("user", "Thanks, that was quick and easy."),
        ("agent", "You are most welcome, and we are looking forward to having you here with us by the sea."),
    ],
    [
        (
            "agent",
            "Hello, you are speaking with the delivery assistant of Green Basket, what can I do for you?",
        ),
        ("user", "My groceries have not arrived yet."),
        (
            "agent",
            "I apologize for the delay. Your order of {sixteen|sixty} items left the warehouse at {five forty|five fourteen}.",
        ),
        ("user", "When will the driver be here?"),
        (
            "agent",
            "The driver is about {eighteen|eighty} minutes away and has {three|six} stops to make before yours.",
        ),
        ("user", "Could I get a refund for the delivery fee?"),
        (
            "agent",
            "Certainly, I will return {nine|five} dollars and {fifty|fifteen} cents to the card that you used for the order.",
        ),
        ("user", "That is kind of you, when will I see it?"),
        (
            "agent",
            "The money should be on your account by {Tuesday|Friday}, {November|December} {twelfth|twentieth} at the latest.",
        ),
        ("user", "Okay, thank you for sorting this out."),
        ("agent", "Thank you for your patience today, and I hope that you enjoy your meal this evening."),
    ],
    [
        (
            "agent",
            "Good evening and welcome to First Valley Bank, your call may be recorded for training purposes.",
        ),
        ("user", "I do not recognize a payment on my card."),
        (
            "agent",
            "I understand your concern. There is a payment of {forty|fourteen} dollars from {January|June} {seventh|eleventh}.",
        ),
        ("user", "I did not make that payment."),
        (
            "agent",
            "I have blocked the card ending in {two zero eight five|two zero eight nine}, and a new one arrives in {six|ten} days.",
        ),
        ("user", "What happens with the money?"),
        (
            "agent",
            "We open a claim today and credit {forty|fourteen} dollars to your account within {thirty|thirteen} hours.",
        ),
        ("user", "Do I have to sign something?"),
        (
            "agent",
            "We will send you one form, please return it before {Monday|Friday} so that we can close the claim quickly.",
        ),
        ("user", "I will do that right away."),
        (
            "agent",
            "Thank you for your cooperation, is there anything else that I can do for you this evening?",
        ),
    ],
    [
        (
            "agent",
            "You have reached Summit Insurance, I am the virtual assistant for claims and policy questions.",
        ),
        ("user", "I had a small accident with my car yesterday."),
        (
            "agent",
            "I am sorry to hear that, I hope nobody was hurt. Your policy number ends in {seven seven three|seven seven nine}, correct?",
        ),
        ("user", "Yes, everyone is fine, it is just the door."),
        (
            "agent",
            "Your deductible is {two hundred fifty|two hundred fifteen} dollars, and repairs usually take {eight|three} working days.",
        ),
        ("user", "Can I use any garage that I like?"),
        (
            "agent",
            "Yes, but our partner garage on {seventeenth|seventieth} avenue can see you on {Thursday|Tuesday} at {nine twenty|nine twelve}.",
        ),
        ("user", "Then I will go to the partner garage."),
        (
            "agent",
            "Perfect, I have reserved the time and a rental car for {five|nine} days without any extra cost.",
        ),
        ("user", "That is a relief, thank you."),
        ("agent", "You are welcome, drive safely, and do not hesitate to call if anything else comes up."),
    ],
]

FILLERS = [
    "One moment please, let me check that for you.",
    "One moment please, I am looking that up now.",
    "One moment please, this will not take long.",
    "One moment please, I am almost there.",
    "One moment please, thank you for waiting.",
    "One moment please, the system is a bit slow.",
]
